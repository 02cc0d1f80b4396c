"""Debezium's changes, read with format=raw, as rows for a sink that upserts and deletes."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

ROW = {"id": pa.int64(), "account": pa.int32(), "amount": pa.string()}
CHANGE = {"before": pa.struct(ROW), "after": pa.struct(ROW), "source": pa.struct({"lsn": pa.int64()})}


def changes(records):
    """Debezium's own form. The tombstone behind a deletion says nothing new."""
    change = parsed(records.filter(pc.is_valid(records["value"]))["value"], CHANGE)
    before, after = change.field("before"), change.field("after")
    ids = pc.coalesce(after.field("id"), before.field("id"))
    return rows(ids, after, change.field("source").field("lsn"), pc.is_null(after))


def unwrapped(records):
    """What ExtractNewRecordState leaves: the row; a deletion is a tombstone."""
    ids = parsed(records["key"], {"id": pa.int64()}).field("id")
    row = parsed(pc.fill_null(records["value"], b"{}"), ROW)
    return rows(ids, row, records["offset"], pc.is_null(records["value"]))


def rows(ids, row, version, deleted):
    amount = row.field("amount").cast(pa.decimal128(12, 2))
    columns = {"id": ids, "account": row.field("account"), "amount": amount, "version": version, "deleted": deleted}
    return pa.RecordBatch.from_pydict(columns)


def parsed(values, columns):
    lines = b"\n".join([*values.to_pylist(), b"{}"])  # of no line at all nothing can be read
    as_these = pj.ParseOptions(explicit_schema=pa.schema(columns), unexpected_field_behavior="ignore")
    found = pj.read_json(pa.BufferReader(lines), pj.ReadOptions(block_size=len(lines) + 1), as_these)
    return found.slice(0, len(values)).to_struct_array().combine_chunks()
