"""Files of a folder as a replayable source, through pyarrow: local, S3, GCS, HDFS. Knows nothing of Spark.

`FileSource` is what a user names; the planner takes files that are new, whole; `read` turns a part of one into Arrow.
"""

from onefold.sources.files.source import FileSource

__all__ = ["FileSource"]
