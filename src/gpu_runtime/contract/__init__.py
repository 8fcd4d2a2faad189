"""All that crosses a process boundary: resources, their rules, errors. Pure: no I/O, no clocks, no clients."""
