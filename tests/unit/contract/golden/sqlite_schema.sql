CREATE TABLE results ( number INTEGER PRIMARY KEY, invocation_id TEXT NOT NULL UNIQUE, request_id TEXT NOT NULL, state TEXT NOT NULL, stored_at INTEGER NOT NULL, accepted_at INTEGER NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL );
CREATE INDEX results_of_a_function ON results (request_id, number, state);
CREATE TABLE function_usage ( request_id TEXT PRIMARY KEY, result_count INTEGER NOT NULL, result_bytes INTEGER NOT NULL ) WITHOUT ROWID;
CREATE TABLE result_counts ( request_id TEXT NOT NULL, period INTEGER NOT NULL, result_count INTEGER NOT NULL, PRIMARY KEY (request_id, period) ) WITHOUT ROWID;
CREATE INDEX result_counts_of_a_period ON result_counts (period);
CREATE TRIGGER result_inserted AFTER INSERT ON results BEGIN INSERT INTO function_usage VALUES (new.request_id, 1, length(new.head) + length(new.body) + 256) ON CONFLICT (request_id) DO UPDATE SET result_count = result_count + 1, result_bytes = result_bytes + excluded.result_bytes; INSERT INTO result_counts VALUES (new.request_id, new.stored_at / 600000, 1) ON CONFLICT (request_id, period) DO UPDATE SET result_count = result_count + 1; END;
CREATE TRIGGER result_deleted AFTER DELETE ON results BEGIN UPDATE function_usage SET result_count = result_count - 1, result_bytes = result_bytes - (length(old.head) + length(old.body) + 256) WHERE request_id = old.request_id; DELETE FROM function_usage WHERE request_id = old.request_id AND result_count = 0; END;
PRAGMA application_id = 1196577363;
PRAGMA user_version = 3;
