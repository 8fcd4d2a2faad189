"""Operations: the durable records behind operationIDs, the loop that drives them, recovery and retention.

The API creates one Operation object per operationID. Any replica can resume the operation, and any replica evicts the
object after the retention period. The packages `units` and `stock` create the units, stock units and pools of an
operation.
"""
