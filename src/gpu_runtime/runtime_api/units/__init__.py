"""GPU units: the handoff from stock, and everything a caller does with a unit afterwards."""
