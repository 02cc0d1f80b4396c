/* JSON objects -> the columns of a schema, in Arrow's layout. yyjson parses each value, whole and by RFC 8259; this file
 * turns the fields that are asked for into Arrow's values.
 *
 * It takes only what it is sure of: a row with anything else (a wrong type, a field twice, an odd number or time, what is
 * no JSON) is marked, and stays the caller's, who has another parser, which is exact and says what is wrong. Whatever is
 * taken here must be what that one says, bit by bit.
 *
 * Memory: buffers belong to the caller, of the sizes that compiled_json.py gives them, except those of the texts, which grow
 * here until onefold_texts_free; what yyjson needs for one value lies in one block of this call's, and a value that needs
 * more is not taken. No state is kept, so any threads may call.
 */

#include "yyjson.h"

#include <float.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

enum { PADDING = 4096, ROW_BYTES_MAX = 1 << 20, TEXT_BYTES_MIN = 256 };
enum { DIGITS_MAX = 19 };  /* so many digits fit in 64 bits */
enum { LEVELS_MAX = 299 }; /* below the object itself: json_vetting.py searches no deeper ones */
_Static_assert(FLT_EVAL_METHOD == 0, "a quotient is rounded once");
#define DAY_US INT64_C(86400000000)

/* --- what the caller sees (mirrored in compiled_json.py) --- */

enum { BOOLEAN, INTEGER, FLOAT, DECIMAL, DATE, TIMESTAMP, LOCAL_TIMESTAMP, TEXT };

typedef struct onefold_column {
    const char *name;
    int32_t name_bytes;
    int32_t kind;
    int32_t width; /* of INTEGER and FLOAT: bits */
    int32_t precision, scale; /* of DECIMAL */
    int32_t is_required;
    uint8_t *valid; /* zeros */
    void *data;     /* BOOLEAN: bits, zeros; TEXT: NULL, and then the texts, with room for so many bytes */
    int64_t room;
    int32_t *ends; /* TEXT: rows + 1 */
    /* answer */
    int64_t nulls;
} onefold_column;

EXPORTED size_t onefold_column_size(void) { return sizeof(onefold_column); }

/* --- memory for one value at a time --- */

typedef struct block {
    char *bytes;
    size_t size, used, last; /* the last piece begins there: it alone can grow */
} block;

static size_t aligned(size_t size) { return (size + 15) & ~(size_t)15; }

static void *block_malloc(void *context, size_t size) {
    block *from = context;
    if (size > from->size || from->used > from->size - aligned(size)) return NULL;
    from->last = from->used;
    from->used += aligned(size);
    return from->bytes + from->last;
}

static void *block_realloc(void *context, void *piece, size_t old_size, size_t size) {
    block *from = context;
    if (piece == from->bytes + from->last) {
        if (size > from->size || from->last > from->size - aligned(size)) return NULL;
        from->used = from->last + aligned(size);
        return piece;
    }
    void *moved = block_malloc(context, size);
    if (moved != NULL) memcpy(moved, piece, old_size < size ? old_size : size);
    return moved;
}

static void block_free(void *context, void *piece) {
    (void)context;
    (void)piece;
}

/* --- numbers --- */

static const uint64_t TENS[DIGITS_MAX + 1] = {
    UINT64_C(1),
    UINT64_C(10),
    UINT64_C(100),
    UINT64_C(1000),
    UINT64_C(10000),
    UINT64_C(100000),
    UINT64_C(1000000),
    UINT64_C(10000000),
    UINT64_C(100000000),
    UINT64_C(1000000000),
    UINT64_C(10000000000),
    UINT64_C(100000000000),
    UINT64_C(1000000000000),
    UINT64_C(10000000000000),
    UINT64_C(100000000000000),
    UINT64_C(1000000000000000),
    UINT64_C(10000000000000000),
    UINT64_C(100000000000000000),
    UINT64_C(1000000000000000000),
    UINT64_C(10000000000000000000),
};

typedef struct plain_number { /* -?digits[.digits], of DIGITS_MAX digits at most */
    bool is_negative;
    uint64_t digits;
    int count, fraction; /* how many digits, and how many of them behind the point */
} plain_number;

static inline bool plain_number_of(const char *text, size_t length, plain_number *out) {
    const char *at = text, *end = text + length;
    out->is_negative = at < end && *at == '-';
    at += out->is_negative;
    const char *first = at, *point = NULL;
    uint64_t digits = 0;
    for (; at < end; at++) {
        unsigned digit = (unsigned)(unsigned char)*at - '0';
        if (digit <= 9)
            digits = digits * 10 + digit; /* may overflow: then there are too many */
        else if (*at == '.' && point == NULL)
            point = at;
        else
            return false;
    }
    out->digits = digits;
    out->count = end - first > 2 * DIGITS_MAX ? 2 * DIGITS_MAX : (int)(end - first) - (point != NULL);
    out->fraction = point == NULL ? 0 : (int)(end - point) - 1;
    return out->count <= DIGITS_MAX && out->count > out->fraction && (point == NULL || out->fraction > 0);
}

/* Whether a number is surely one for the other parser, too: a double can be nearest to it, and it is no zero, of which
 * that one refuses 0e309. yyjson ends a raw text with a zero. */
static bool is_in_range(yyjson_val *number, yyjson_val *out) {
    const char *text = unsafe_yyjson_get_raw(number);
    return yyjson_read_number(text, out, 0, NULL, NULL) == text + unsafe_yyjson_get_len(number) &&
           !(yyjson_is_real(out) && unsafe_yyjson_get_real(out) == 0);
}

static bool integer_of(yyjson_val *value, const onefold_column *column, int64_t row) {
    plain_number number;
    if (!yyjson_is_raw(value)) return false;
    if (!plain_number_of(unsafe_yyjson_get_raw(value), unsafe_yyjson_get_len(value), &number) || number.fraction > 0)
        return false;
    if (number.digits > INT64_MAX) return false;
    int64_t found = number.is_negative ? -(int64_t)number.digits : (int64_t)number.digits;
    switch (column->width) {
    case 64: ((int64_t *)column->data)[row] = found; return true;
    case 32: return (((int32_t *)column->data)[row] = (int32_t)found) == found;
    case 16: return (((int16_t *)column->data)[row] = (int16_t)found) == found;
    default: return (((int8_t *)column->data)[row] = (int8_t)found) == found;
    }
}

/* Digits that the type holds exactly, divided by a power of ten that it holds exactly: rounded once, so correctly. */
static bool float_of(yyjson_val *value, const onefold_column *column, int64_t row) {
    plain_number number;
    if (!yyjson_is_raw(value)) return false;
    bool is_plain = plain_number_of(unsafe_yyjson_get_raw(value), unsafe_yyjson_get_len(value), &number);
    if (column->width == 32) {
        if (!is_plain || number.digits > 1 << 24 || number.fraction > 10) return false;
        float found = (float)number.digits / (float)TENS[number.fraction];
        ((float *)column->data)[row] = number.is_negative ? -found : found;
        return true;
    }
    double found;
    if (is_plain && number.digits <= UINT64_C(1) << 53) {
        found = (double)number.digits / (double)TENS[number.fraction];
        found = number.is_negative ? -found : found;
    } else {
        yyjson_val read;
        if (!is_in_range(value, &read) || !yyjson_is_real(&read)) return false;
        found = unsafe_yyjson_get_real(&read);
    }
    ((double *)column->data)[row] = found;
    return true;
}

static bool decimal_of(yyjson_val *value, const onefold_column *column, int64_t row) {
    plain_number number;
    if (!yyjson_is_raw(value) && !yyjson_is_str(value)) return false;
    if (!plain_number_of(unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value), &number)) return false;
    int zeros = column->scale - number.fraction;
    /* At most 38 digits in all, so that nothing overflows; and without those zeros no more than the type has. */
    if (zeros < 0 || number.count + zeros > 38) return false;
    unsigned __int128 units = number.digits;
    for (; zeros > DIGITS_MAX; zeros -= DIGITS_MAX) units *= TENS[DIGITS_MAX];
    units *= TENS[zeros];
    unsigned __int128 limit = 1;
    int digits = column->precision;
    for (; digits > DIGITS_MAX; digits -= DIGITS_MAX) limit *= TENS[DIGITS_MAX];
    if (units >= limit * TENS[digits]) return false;
    __int128 found = number.is_negative ? -(__int128)units : (__int128)units;
    memcpy((char *)column->data + 16 * row, &found, 16);
    return true;
}

/* --- times --- */

static inline int two_digits(const char *text) {
    unsigned tens = (unsigned)(unsigned char)text[0] - '0', ones = (unsigned)(unsigned char)text[1] - '0';
    return tens > 9 || ones > 9 ? -1 : (int)(tens * 10 + ones);
}

/* YYYY-MM-DD, of the years 1 to 9999, as days since 1970. By Howard Hinnant's days_from_civil. */
static bool day_of(const char *text, int64_t *out) {
    static const uint8_t LAST[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int century = two_digits(text), year = two_digits(text + 2), month = two_digits(text + 5), day = two_digits(text + 8);
    if (century < 0 || year < 0 || month < 1 || month > 12 || day < 1 || text[4] != '-' || text[7] != '-') return false;
    year += century * 100;
    bool is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (year < 1 || day > LAST[month - 1] + (month == 2 && is_leap)) return false;
    int from_march = month > 2 ? year : year - 1, era = from_march / 400, of_era = from_march - era * 400;
    int of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    *out = (int64_t)era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    return true;
}

static bool date_of(yyjson_val *value, const onefold_column *column, int64_t row) {
    int64_t day;
    if (!yyjson_is_str(value) || unsafe_yyjson_get_len(value) != 10) return false;
    if (!day_of(unsafe_yyjson_get_str(value), &day)) return false;
    ((int32_t *)column->data)[row] = (int32_t)day;
    return true;
}

/* Z, +HH:MM or -HH:MM, to the very end; as microseconds. */
static bool zone_of(const char *text, size_t length, int64_t *out) {
    if (length == 1 && *text == 'Z') return true;
    if (length != 6 || (*text != '+' && *text != '-') || text[3] != ':') return false;
    int hours = two_digits(text + 1), minutes = two_digits(text + 4);
    if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59) return false;
    *out = (*text == '+' ? 1 : -1) * (hours * 60 + minutes) * INT64_C(60000000);
    return true;
}

/* YYYY-MM-DD HH:MM:SS, with a blank or a T between, up to six digits of a second; and of a TIMESTAMP a zone, or UTC. */
static bool timestamp_of(yyjson_val *value, const onefold_column *column, int64_t row) {
    if (!yyjson_is_str(value) || unsafe_yyjson_get_len(value) < 19) return false;
    const char *text = unsafe_yyjson_get_str(value), *end = text + unsafe_yyjson_get_len(value);
    int64_t day, zone = 0, fraction = 0;
    int hour = two_digits(text + 11), minute = two_digits(text + 14), second = two_digits(text + 17);
    if (!day_of(text, &day) || (text[10] != 'T' && text[10] != ' ') || text[13] != ':' || text[16] != ':') return false;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return false;
    const char *at = text + 19;
    if (at < end && *at == '.') {
        const char *first = ++at;
        for (; at < end && *at >= '0' && *at <= '9' && at - first < 6; at++) fraction = fraction * 10 + (*at - '0');
        if (at == first) return false;
        fraction *= (int64_t)TENS[6 - (at - first)];
    }
    if (at < end && (column->kind == LOCAL_TIMESTAMP || !zone_of(at, (size_t)(end - at), &zone))) return false;
    int64_t found = day * DAY_US + ((hour * 60 + minute) * 60 + second) * INT64_C(1000000) + fraction - zone;
    if (found < -719162 * DAY_US || found >= 2932897 * DAY_US) return false; /* by its zone it is of no year there is */
    ((int64_t *)column->data)[row] = found;
    return true;
}

/* --- cells --- */

static inline void set_bit(uint8_t *bits, int64_t at) { bits[at >> 3] |= (uint8_t)(1u << (at & 7)); }

static bool boolean_of(yyjson_val *value, const onefold_column *column, int64_t row) {
    if (!yyjson_is_bool(value)) return false;
    if (unsafe_yyjson_get_bool(value)) set_bit(column->data, row);
    return true;
}

/* For these bytes and one more, so that also a text of none has an address. */
static bool has_room(onefold_column *column, int64_t bytes) {
    if (bytes < column->room) return true;
    int64_t room = 2 * bytes + TEXT_BYTES_MIN;
    void *moved = realloc(column->data, (size_t)room);
    if (moved == NULL) return false;
    column->data = moved;
    column->room = room;
    return true;
}

/* All texts of a column have no more bytes than they have in JSON, so that 32 bits are enough for where they end. */
static bool text_of(yyjson_val *value, onefold_column *column, int64_t row) {
    if (!yyjson_is_str(value)) return false;
    size_t length = unsafe_yyjson_get_len(value);
    int32_t start = column->ends[row];
    if (!has_room(column, start + (int64_t)length)) return false;
    memcpy((char *)column->data + start, unsafe_yyjson_get_str(value), length);
    column->ends[row + 1] = start + (int32_t)length;
    return true;
}

static inline bool cell_of(yyjson_val *value, onefold_column *column, int64_t row) {
    switch (column->kind) {
    case BOOLEAN: return boolean_of(value, column, row);
    case INTEGER: return integer_of(value, column, row);
    case FLOAT: return float_of(value, column, row);
    case DECIMAL: return decimal_of(value, column, row);
    case DATE: return date_of(value, column, row);
    case TEXT: return text_of(value, column, row);
    default: return timestamp_of(value, column, row);
    }
}

static void null_of(onefold_column *column, int64_t row) {
    static const uint8_t BYTES[] = {[FLOAT] = 8, [DECIMAL] = 16, [DATE] = 4, [TIMESTAMP] = 8, [LOCAL_TIMESTAMP] = 8};
    column->nulls++;
    if (column->kind == TEXT) {
        column->ends[row + 1] = column->ends[row];
    } else if (column->kind != BOOLEAN) {
        size_t bytes = column->width > 0 ? (size_t)column->width / 8 : BYTES[column->kind];
        memset((char *)column->data + bytes * (size_t)row, 0, bytes);
    }
}

/* Whether a field that nobody asked for is one that the other parser passes over, too: not very deep, no odd number. */
static bool can_be_passed(yyjson_val *value) {
    yyjson_val *end = unsafe_yyjson_get_next(value), *ends[LEVELS_MAX];
    int level = 0;
    for (; value < end; value++) {
        plain_number number;
        yyjson_val read;
        while (level > 0 && value == ends[level - 1]) level--;
        if (unsafe_yyjson_is_ctn(value)) {
            if (level == LEVELS_MAX) return false;
            ends[level++] = unsafe_yyjson_get_next(value);
        } else if (yyjson_is_raw(value) &&
                   !plain_number_of(unsafe_yyjson_get_raw(value), unsafe_yyjson_get_len(value), &number) &&
                   !is_in_range(value, &read)) {
            return false;
        }
    }
    return true;
}

/* --- columns by their names --- */

typedef struct table {
    onefold_column *columns;
    int32_t count;
    int32_t *after; /* [i + 1]: which column came behind column i, as far as is known: most records are alike */
    int32_t *slots; /* columns by the hash of their names, at the first free place from there on; -1 where none is */
    size_t last;    /* of the slots: one less than a power of two, and more than twice the columns */
    int64_t *row;   /* the row in which each column was seen last */
} table;

static inline bool is_named(const char *name, size_t bytes, const onefold_column *column) {
    return bytes == (size_t)column->name_bytes && memcmp(name, column->name, bytes) == 0;
}

static size_t hash_of(const char *name, size_t bytes) {
    uint64_t hash = bytes, part;
    for (; bytes >= sizeof part; bytes -= sizeof part, name += sizeof part) {
        memcpy(&part, name, sizeof part);
        hash = (hash ^ part) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    for (part = 0; bytes > 0; bytes--) part = part << 8 | (unsigned char)*name++;
    hash = (hash ^ part) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(hash ^ hash >> 32);
}

static void table_free(table *of) {
    free(of->after);
    free(of->slots);
    free(of->row);
}

static bool table_of(onefold_column *columns, int32_t count, table *of) {
    size_t slots = 4;
    while (slots <= 2 * (size_t)count) slots *= 2;
    *of = (table){.columns = columns, .count = count, .last = slots - 1};
    of->after = malloc(((size_t)count + 1) * sizeof *of->after);
    of->slots = malloc(slots * sizeof *of->slots);
    of->row = malloc((size_t)count * sizeof *of->row);
    if (of->after == NULL || of->slots == NULL || of->row == NULL) {
        table_free(of);
        return false;
    }
    memset(of->slots, -1, slots * sizeof *of->slots);
    for (int32_t i = 0; i < count; i++) {
        of->row[i] = -1;
        of->after[i] = i;
        size_t at = hash_of(columns[i].name, (size_t)columns[i].name_bytes);
        while (of->slots[at & of->last] >= 0) at++;
        of->slots[at & of->last] = i;
    }
    of->after[count] = 0;
    return true;
}

/* The column of a field, which stands behind that of `before`; or -1. */
static int32_t column_of(const table *of, yyjson_val *key, int32_t before) {
    const char *name = unsafe_yyjson_get_str(key);
    size_t bytes = unsafe_yyjson_get_len(key);
    int32_t expected = of->after[before + 1];
    if (is_named(name, bytes, &of->columns[expected])) return expected;
    for (size_t at = hash_of(name, bytes);; at++) {
        int32_t i = of->slots[at & of->last];
        if (i < 0) return -1;
        if (is_named(name, bytes, &of->columns[i])) return of->after[before + 1] = i;
    }
}

/* --- rows --- */

static bool row_of(const table *of, yyjson_val *object, int64_t row) {
    int32_t before = -1, found = 0;
    size_t index, fields;
    yyjson_val *key, *value;
    yyjson_obj_foreach(object, index, fields, key, value) {
        int32_t i = column_of(of, key, before);
        if (i < 0) {
            if (!can_be_passed(value)) return false;
            continue;
        }
        if (of->row[i] == row) return false; /* it comes twice */
        of->row[i] = row;
        before = i;
        found++;
        onefold_column *column = &of->columns[i];
        if (yyjson_is_null(value)) {
            if (column->is_required) return false;
            null_of(column, row);
        } else {
            if (!cell_of(value, column, row)) return false;
            set_bit(column->valid, row);
        }
    }
    for (int32_t i = 0; found < of->count && i < of->count; i++) {
        if (of->row[i] == row) continue;
        if (of->columns[i].is_required) return false;
        null_of(&of->columns[i], row);
        found++;
    }
    return true;
}

/* The rows of values that lie one behind the other, value i from ends[i] on. Where `left` is not 0 (it has zeros), a row
 * was not taken, and what its columns have there is nothing. Returns how many those are, or -1 without memory. */
EXPORTED int64_t onefold_json(const char *text, const int32_t *ends, int64_t rows, onefold_column *columns,
                              int32_t count, uint8_t *left) {
    int32_t longest = 0;
    for (int64_t row = 0; row < rows; row++) {
        int32_t bytes = ends[row + 1] - ends[row];
        if (bytes > longest && bytes <= ROW_BYTES_MAX) longest = bytes;
    }
    table of;
    if (!table_of(columns, count, &of)) return -1;
    block memory = {.size = 16 * (size_t)longest + PADDING};
    memory.bytes = malloc(memory.size);
    int64_t skipped = memory.bytes != NULL ? 0 : -1;
    for (int32_t i = 0; i < count; i++)
        if (columns[i].kind == TEXT) columns[i].ends[0] = 0;
    yyjson_alc allocator = {block_malloc, block_realloc, block_free, &memory};
    for (int64_t row = 0; skipped >= 0 && row < rows; row++) {
        size_t bytes = (size_t)(ends[row + 1] - ends[row]);
        memory.used = memory.last = 0;
        yyjson_doc *document =
            bytes > (size_t)longest ? NULL
                                    : yyjson_read_opts((char *)(uintptr_t)(text + ends[row]), bytes,
                                                       YYJSON_READ_NUMBER_AS_RAW, &allocator, NULL);
        yyjson_val *root = yyjson_doc_get_root(document);
        if (yyjson_is_obj(root) && row_of(&of, root, row)) continue;
        left[row] = 1;
        skipped++;
        for (int32_t i = 0; i < count; i++)
            if (columns[i].kind == TEXT) columns[i].ends[row + 1] = columns[i].ends[row];
    }
    table_free(&of);
    free(memory.bytes);
    return skipped;
}

EXPORTED void onefold_texts_free(onefold_column *columns, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (columns[i].kind == TEXT) free(columns[i].data);
}
