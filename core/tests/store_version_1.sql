-- A store as onefold wrote it while its tables had version 1: the same in SQLite and in Postgres.
CREATE TABLE onefold_epochs (
	pipeline VARCHAR(200) NOT NULL,
	epoch BIGINT NOT NULL,
	generation BIGINT NOT NULL,
	state VARCHAR(10) NOT NULL,
	range_start TEXT NOT NULL,
	range_end TEXT NOT NULL,
	timestamp_ms BIGINT NOT NULL,
	query_id TEXT NOT NULL,
	batch_id BIGINT NOT NULL,
	fingerprint TEXT NOT NULL,
	sinks TEXT NOT NULL,
	manifest TEXT NOT NULL,
	rows BIGINT NOT NULL,
	bytes BIGINT NOT NULL,
	opened_at_ms BIGINT,
	decided_at_ms BIGINT,
	completed_at_ms BIGINT,
	error TEXT,
	PRIMARY KEY (pipeline, epoch)
);
INSERT INTO "onefold_epochs" VALUES('orders',1,1,'complete','{"orders/0":0}','{"orders/0":100}',1763000000000,'9b1c0f9e-query',0,'job','["rows"]','[{"sink": "rows", "kind": "two-phase", "handle": "of/orders/rows/1/1/00000000000040008000000000000003", "generation": 1, "epoch": 1, "rows": 60, "bytes": 1020}, {"sink": "rows", "kind": "two-phase", "handle": "of/orders/rows/1/1/00000000000040008000000000000004", "generation": 1, "epoch": 1, "rows": 40, "bytes": 680}]',100,1700,1763000000000,1763000000050,1763000000090,NULL);
INSERT INTO "onefold_epochs" VALUES('orders',2,1,'given_up','{"orders/0":100}','{"orders/0":200}',1763000001000,'9b1c0f9e-query',1,'job','["rows"]','[]',0,0,1763000001000,NULL,NULL,NULL);
INSERT INTO "onefold_epochs" VALUES('orders',3,2,'decided','{"orders/0":100}','{"orders/0":200}',1763000002000,'9b1c0f9e-query',1,'job','["rows"]','[{"sink": "rows", "kind": "two-phase", "handle": "of/orders/rows/2/3/00000000000040008000000000000006", "generation": 2, "epoch": 3, "rows": 100, "bytes": 1700}]',100,1700,1763000002000,1763000002050,NULL,NULL);
INSERT INTO "onefold_epochs" VALUES('payments',1,1,'open','{"orders/0":0}','{"orders/0":7}',1763000000010,'q',0,'job','["rows"]','[]',0,0,1763000000010,NULL,NULL,NULL);
CREATE TABLE onefold_pipelines (
	pipeline VARCHAR(200) NOT NULL,
	generation BIGINT NOT NULL,
	token VARCHAR(32) NOT NULL,
	frozen TEXT,
	PRIMARY KEY (pipeline)
);
INSERT INTO "onefold_pipelines" VALUES('orders',2,'00000000000040008000000000000005','{"orders/0":0}');
INSERT INTO "onefold_pipelines" VALUES('payments',1,'00000000000040008000000000000007',NULL);
CREATE TABLE onefold_store (
	store_id VARCHAR(36) NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (store_id)
);
INSERT INTO "onefold_store" VALUES('00000000-0000-4000-8000-000000000001',1);
CREATE INDEX onefold_epochs_by_state ON onefold_epochs (pipeline, state);
