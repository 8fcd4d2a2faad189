"""The result repository: a small port, and SQLite behind it. It knows neither messages nor NATS: a result is bytes."""
