"""The activator process.

Every replica dispatches invocations from the INVOKE stream to the DISPATCH subject of their function (`dispatcher`).
Workers pull invocations from this subject, so a running worker does not depend on the leader.

The leader also scales workers, and it ends invocations that no worker will run (`invocation_reaper`).

`autoscaler` makes every decision about workers, without I/O. It decides:

- how many workers a function needs
- when a worker that sends no events is unhealthy
- which outdated workers to replace, and when
- when to start and stop the function's own unit, if the function has storages

`reconcile` observes one function and applies the decisions. `worker_lifecycle` creates, drains and deletes one worker.
`worker_liveness` stores the last event of each worker.
"""
