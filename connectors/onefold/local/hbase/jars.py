"""HBase's jars: those that a standalone server and its Thrift servers load, named one by one.

What they declare to need are 154 jars of 110 MB, which resolve in 209 s: all of MapReduce, YARN and three generations
of web servers. These are the 54 (59 MB, 44 s) from which a class was loaded while tables were made, written, read,
flushed, compacted, recovered after SIGKILL and served by both Thrift servers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onefold.local.artifacts import Distribution, downloaded, pinned

if TYPE_CHECKING:
    from rich.progress import Progress

    from onefold.local.java import Java

HBASE_VERSION = "2.6.1"
_HBASE = (
    "asyncfs client common hadoop-compat hadoop2-compat metrics metrics-api procedure protocol protocol-shaded "
    "replication server thrift zookeeper"
)
_SHADED = "hbase-shaded-gson hbase-shaded-jetty hbase-shaded-miscellaneous hbase-shaded-netty hbase-shaded-protobuf"
_HADOOP = "annotations auth common hdfs-client mapreduce-client-core"
_MODULES = (
    *(("org.apache.hbase", f"hbase-{name}", HBASE_VERSION) for name in _HBASE.split()),
    *(("org.apache.hbase.thirdparty", name, "4.1.9") for name in (*_SHADED.split(), "hbase-unsafe")),
    *(("org.apache.hadoop", f"hadoop-{name}", "2.10.2") for name in _HADOOP.split()),
    ("ch.qos.reload4j", "reload4j", "1.2.18.3"),
    ("com.fasterxml.woodstox", "woodstox-core", "5.3.0"),
    ("com.google.guava", "guava", "11.0.2"),
    ("com.google.protobuf", "protobuf-java", "2.5.0"),
    ("com.lmax", "disruptor", "3.4.4"),
    ("commons-cli", "commons-cli", "1.5.0"),
    ("commons-codec", "commons-codec", "1.15"),
    ("commons-collections", "commons-collections", "3.2.2"),
    ("commons-configuration", "commons-configuration", "1.6"),
    ("commons-io", "commons-io", "2.11.0"),
    ("commons-lang", "commons-lang", "2.6"),
    ("commons-logging", "commons-logging", "1.1.3"),
    ("io.dropwizard.metrics", "metrics-core", "3.2.6"),
    ("io.opentelemetry", "opentelemetry-api", "1.15.0"),
    ("io.opentelemetry", "opentelemetry-context", "1.15.0"),
    ("io.opentelemetry", "opentelemetry-semconv", "1.15.0-alpha"),
    ("javax.servlet", "servlet-api", "2.5"),
    ("org.apache.commons", "commons-lang3", "3.9"),
    ("org.apache.htrace", "htrace-core4", "4.1.0-incubating"),
    ("org.apache.thrift", "libthrift", "0.14.1"),
    ("org.apache.yetus", "audience-annotations", "0.13.0"),
    ("org.apache.zookeeper", "zookeeper", "3.8.4"),
    ("org.apache.zookeeper", "zookeeper-jute", "3.8.4"),
    ("org.codehaus.jackson", "jackson-core-asl", "1.9.13"),
    ("org.codehaus.jackson", "jackson-mapper-asl", "1.9.13"),
    ("org.codehaus.woodstox", "stax2-api", "4.2.1"),
    ("org.slf4j", "slf4j-api", "1.7.33"),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.4"),
)


def hbase_jars(java: Java, progress: Progress | None = None) -> Path:
    """The folder of HBase's jars, downloaded if the cache lacks them."""
    distribution = Distribution(
        "hbase",
        "HBase",
        HBASE_VERSION,
        modules=_MODULES,
        sums=pinned(Path(__file__).with_name(f"hbase-{HBASE_VERSION}.sha256")),
        transitive=False,
        download_bytes=250 * 1024 * 1024,
    )
    return downloaded(distribution, java, progress)
