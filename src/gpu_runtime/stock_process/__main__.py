"""python -m gpu_runtime.stock_process

A GPU that is not let go of at once would for seconds belong to two pods. The kernel keeps SIGTERM from a container's
first process unless that one handles the signal or has blocked it; waiting for it alone is not enough.
"""

import signal

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}

signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
signal.sigwait(STOP_SIGNALS)
