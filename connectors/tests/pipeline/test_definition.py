"""What is shown of a pipeline's file, which may have secrets anywhere."""

from __future__ import annotations

from pathlib import Path

from onefold.pipeline.file import definition

FILE = r"""
name = "orders"
patience_s = 30.5
require_tls = true
[settings]
anything = "s3cr3t"
pin = 4711
key = "${API_KEY}"
[[sources]]
kind = "kafka"
topics = ["orders", "return\ns"]
bootstrap_servers = "a:9092,b:9092"
schema = "id long, at timestamp"
[sources.client_config]
"sasl.username" = "shop"
"sasl.password" = "s3cr3t"
"ssl.key.pem" = "s3cr3t"
"sasl.oauthbearer.client.secret" = "s3cr3t"
[sources.registry]
url = "https://shop:s3cr3t@registry:8081/?token=s3cr3t"
"basic.auth.user.info" = "shop:s3cr3t"
[sources.more]
url = "https://one,https://shop:s3cr3t@two"
[sources.dead_letters]
url = "postgresql://shop:${PASSWORD}@db/shop"
[[sinks]]
url = "postgresql://shop@db/shop?sslpassword=s3cr3t"
password_file = "/run/secrets/db"
key = ["id"]
[[sinks]]
url = "host=db user=shop password=s3cr3t"
[[sinks]]
url = "${URL}"
[[sinks]]
url = "shop:s3cr3t@db"
password = "a${B}s3cr3t"
[spark.settings]
"spark.executor.memory" = "4g"
"spark.hadoop.fs.s3a.access.key" = "s3cr3t"
"spark.hadoop.fs.azure.sas.orders.shop" = "sv=1&sig=s3cr3t"
"spark.driver.extraJavaOptions" = "-Dproxy=http://proxy -Djavax.net.ssl.keyStorePassword=s3cr3t"
"""


def test_all_of_a_file_is_shown_but_for_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(FILE)
    shown = definition(str(tmp_path / "orders.toml"))
    assert not any("s3cr3t" in line or "4711" in line for line in shown)
    assert shown == (
        'name = "orders"',
        "patience_s = 30.5",
        "require_tls = true",
        'settings.anything = "***"',
        'settings.pin = "***"',
        'settings.key = "${API_KEY}"',
        'sources[0].kind = "kafka"',
        'sources[0].topics = ["orders", "return\\ns"]',
        'sources[0].bootstrap_servers = "a:9092,b:9092"',
        'sources[0].schema = "id long, at timestamp"',
        'sources[0].client_config."sasl.username" = "shop"',
        'sources[0].client_config."sasl.password" = "***"',
        'sources[0].client_config."ssl.key.pem" = "***"',
        'sources[0].client_config."sasl.oauthbearer.client.secret" = "***"',
        'sources[0].registry.url = "https://registry:8081/"',
        'sources[0].registry."basic.auth.user.info" = "***"',
        'sources[0].more.url = "***"',
        'sources[0].dead_letters.url = "postgresql://db/shop"',
        'sinks[0].url = "postgresql://db/shop"',
        'sinks[0].password_file = "/run/secrets/db"',
        'sinks[0].key = ["id"]',
        'sinks[1].url = "***"',
        'sinks[2].url = "${URL}"',
        'sinks[3].url = "***"',
        'sinks[3].password = "***"',
        'spark.settings."spark.executor.memory" = "4g"',
        'spark.settings."spark.hadoop.fs.s3a.access.key" = "***"',
        'spark.settings."spark.hadoop.fs.azure.sas.orders.shop" = "***"',
        'spark.settings."spark.driver.extraJavaOptions" = "***"',
    )


def test_what_is_defined_in_python_has_no_file_to_show() -> None:
    assert definition("jobs/orders.py:pipeline") == ()
