CREATE TABLE results ( number INTEGER PRIMARY KEY, invocation_id TEXT NOT NULL UNIQUE, request_id TEXT NOT NULL, state TEXT NOT NULL, stored_at INTEGER NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL );
CREATE INDEX results_of_a_function ON results (request_id, number, state);
PRAGMA application_id = 1196577363;
PRAGMA user_version = 1;
