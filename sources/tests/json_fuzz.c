/* json.c on texts that are made of pieces of JSON and cut anywhere, in blocks of exactly their sizes, so that the
 * sanitizers see a byte too many. `json_fuzz ROUNDS SEED` */

#include "json.c"

#include <assert.h>
#include <stdio.h>

enum { COLUMNS = 12, ROWS_MAX = 40, ROW_MAX = 600 };

static uint64_t state;

static uint32_t upto(uint32_t most) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return most == 0 ? 0 : (uint32_t)(state >> 11) % most;
}

static const char *PIECES[] = {
    "{",       "}",           "[",      "]",          ":",
    ",",       "\"",          "\\",     "\\u00e9",    "\\ud83d\\ude00",
    "\\ud800", "\\n",         "null",   "true",       "false",
    "0",       "-0",          "-",      "1e400",      "1e-9",
    "12.50",   "9223372036854775808",   "-9223372036854775808", "99999999999999999999999999999999999999",
    "0.1",     "1.",          "17",     "65536",      "3.4028235677973366e38",
    "\"2026-11-20\"",         "\"2026-02-30T23:59:59.123456+23:59\"", "\"2026-11-20 08:30:00.1Z\"", "\"0001-01-01T00:00:00+10:00\"",
    "\"a\":",  "\"b\":",      "\"c\":", "\"column\":", "\"\xc3\xa9\":",
    "\"12.5\"", "\xc3\xa9",   "\xff",   "\xe2\x82",   " ",
    "\n",      "\"some text that is a little longer than a register\"",
};

static const onefold_column KINDS[] = {
    {.kind = BOOLEAN},
    {.kind = INTEGER, .width = 8},
    {.kind = INTEGER, .width = 16},
    {.kind = INTEGER, .width = 32},
    {.kind = INTEGER, .width = 64},
    {.kind = FLOAT, .width = 32},
    {.kind = FLOAT, .width = 64},
    {.kind = DECIMAL, .precision = 12, .scale = 2},
    {.kind = DECIMAL, .precision = 38, .scale = 38},
    {.kind = DECIMAL, .precision = 38, .scale = 0},
    {.kind = DATE},
    {.kind = TIMESTAMP},
    {.kind = LOCAL_TIMESTAMP},
    {.kind = TEXT},
};
static const char *NAMES[COLUMNS] = {"a", "b", "c", "column", "\xc3\xa9", "", "f", "g", "h", "i", "j", "k"};

/* What each kind takes, in KINDS' order of kinds. */
static const char *GOOD[][3] = {
    [BOOLEAN] = {"true", "false", "null"},
    [INTEGER] = {"0", "-17", "99"},
    [FLOAT] = {"0.5", "-12.25", "3"},
    [DECIMAL] = {"0", "\"0.00\"", "0.1"},
    [DATE] = {"\"2026-11-20\"", "\"2024-02-29\"", "null"},
    [TIMESTAMP] = {"\"2026-11-20T08:30:00.123Z\"", "\"1999-12-31 23:59:59+05:30\"", "\"0001-01-01T00:00:00\""},
    [LOCAL_TIMESTAMP] = {"\"2026-11-20T08:30:00.123456\"", "\"9999-12-31 23:59:59\"", "null"},
    [TEXT] = {"\"\"", "\"caf\\u00e9 \\ud83d\\ude00\"", "\"a text that is longer than any register there is\""},
};

static size_t append(char *to, size_t used, const char *piece) {
    size_t length = strlen(piece);
    if (used + length > ROW_MAX) return used;
    memcpy(to + used, piece, length);
    return used + length;
}

/* A value: mostly of fields that are there, in their order or not, and then cut or changed, or not. */
static size_t some(char *to, const onefold_column *columns, uint32_t count) {
    size_t used = append(to, 0, upto(20) ? "{" : "");
    uint32_t first = upto(4) ? 0 : upto(count), odd = upto(2) ? UINT32_MAX : upto(count);
    for (uint32_t i = 0; i < count; i++) {
        const onefold_column *column = &columns[(first + i) % count];
        char name[40];
        snprintf(name, sizeof name, "%s\"%s\":", i > 0 ? "," : "", upto(20) ? column->name : "unknown");
        used = append(to, used, name);
        used = append(to, used, i == odd ? PIECES[upto(sizeof PIECES / sizeof *PIECES)] : GOOD[column->kind][upto(3)]);
    }
    used = append(to, used, upto(20) ? "}" : "");
    for (uint32_t left = upto(4) ? 0 : upto(12); left > 0; left--) used = append(to, used, PIECES[upto(sizeof PIECES / sizeof *PIECES)]);
    if (upto(20) == 0 && used > 0) to[upto((uint32_t)used)] = (char)upto(256);
    return upto(20) == 0 ? upto((uint32_t)used + 1) : used;
}

static size_t bytes_of(const onefold_column *column) {
    return column->kind == DECIMAL ? 16 : column->kind == DATE ? 4 : column->width > 0 ? (size_t)column->width / 8 : 8;
}

int main(int count, char **given) {
    assert(count == 3);
    long rounds = atol(given[1]), taken = 0, skipped = 0;
    state = strtoull(given[2], NULL, 10) * 2654435761u + 1;
    for (long round = 0; round < rounds; round++) {
        int64_t rows = 1 + upto(ROWS_MAX);
        onefold_column columns[COLUMNS];
        int32_t used = (int32_t)(1 + upto(COLUMNS));
        for (int32_t i = 0; i < used; i++) {
            onefold_column *column = &columns[i];
            *column = KINDS[upto(sizeof KINDS / sizeof *KINDS)];
            column->name = NAMES[i];
            column->name_bytes = (int32_t)strlen(NAMES[i]);
            column->is_required = upto(10) == 0;
        }
        char row[ROW_MAX];
        int32_t *ends = malloc((size_t)(rows + 1) * sizeof *ends);
        char *text = NULL;
        ends[0] = 0;
        for (int64_t i = 0; i < rows; i++) {
            size_t length = some(row, columns, (uint32_t)used);
            text = realloc(text, (size_t)ends[i] + length + 1);
            memcpy(text + ends[i], row, length);
            ends[i + 1] = ends[i] + (int32_t)length;
        }
        text = realloc(text, (size_t)ends[rows] + (ends[rows] == 0)); /* not a byte behind it */
        for (int32_t i = 0; i < used; i++) {
            onefold_column *column = &columns[i];
            column->valid = calloc(1, (size_t)(rows + 7) / 8);
            size_t size = column->kind == BOOLEAN ? (size_t)(rows + 7) / 8 : bytes_of(column) * (size_t)rows;
            column->data = column->kind == TEXT ? NULL : calloc(1, size);
            column->ends = column->kind == TEXT ? malloc((size_t)(rows + 1) * sizeof *column->ends) : NULL;
        }
        uint8_t *left = calloc(1, (size_t)rows);
        int64_t missed = onefold_json(text, ends, rows, columns, used, left);
        assert(missed >= 0 && missed <= rows);
        taken += rows - missed;
        skipped += missed;
        onefold_texts_free(columns, used);
        for (int32_t i = 0; i < used; i++) {
            for (int64_t at = 0; columns[i].kind == TEXT && at < rows; at++)
                assert(columns[i].ends[at] <= columns[i].ends[at + 1] && columns[i].ends[at + 1] <= ends[at + 1]);
            free(columns[i].valid);
            if (columns[i].kind != TEXT) free(columns[i].data);
            free(columns[i].ends);
        }
        free(left);
        free(text);
        free(ends);
    }
    printf("%ld taken, %ld left\n", taken, skipped);
    return taken > rounds && skipped > rounds ? 0 : 1;
}
