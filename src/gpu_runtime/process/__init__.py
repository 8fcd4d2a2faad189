"""What every process has: settings, logs, an orderly end, health and metrics. Nothing of what any one of them does."""
