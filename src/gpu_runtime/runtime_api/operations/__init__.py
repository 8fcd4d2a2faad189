"""The durable records behind operationIDs: made once, driven forward by whoever finds them, kept for a while."""
