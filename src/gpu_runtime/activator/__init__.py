"""The activator: every replica hands invocations to the functions' queues; the leader keeps the workers of them.

It never carries an invocation to a worker: workers pull. So a warm worker waits for no leader.
"""
