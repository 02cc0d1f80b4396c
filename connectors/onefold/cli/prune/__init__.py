"""`onefold txn prune`: removes bookkeeping of pipelines that are gone."""
