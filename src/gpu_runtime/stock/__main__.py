"""python -m gpu_runtime.stock

The first process of a container ignores SIGTERM unless it handles it, and a GPU that is not let go of at once would for
seconds belong to two pods.
"""

import signal

signal.sigwait({signal.SIGTERM, signal.SIGINT})
