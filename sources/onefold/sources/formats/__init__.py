"""How records of any source are parsed: values, one a record, to Arrow, exactly or not at all; and schemas as texts."""
