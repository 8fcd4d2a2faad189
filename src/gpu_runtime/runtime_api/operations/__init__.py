"""Operations: the durable records behind operationIDs, their state machine, recovery, retention and the job route.

An Operation object is created once per operationID. Any replica can resume it. It is evicted after the retention
period. What an operation creates is the matter of the packages `units` and `stock`."""
