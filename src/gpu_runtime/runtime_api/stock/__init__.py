"""What operators do: pools, seeding stock, the inventory."""
