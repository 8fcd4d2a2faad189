"""Runs the stock process: `python -m gpu_runtime.stock_process`.

The process must exit immediately on SIGTERM. Otherwise the GPU would be assigned to two pods for several seconds.

The kernel does not deliver SIGTERM to the first process of a container unless that process handles or blocks the
signal. sigwait() alone is therefore not enough: the process blocks the signals first.
"""

import signal

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}

signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
signal.sigwait(STOP_SIGNALS)
