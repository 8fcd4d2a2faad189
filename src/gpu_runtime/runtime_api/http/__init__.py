"""The HTTP edge: routes as data, authentication, rate limits, decoding, the response envelope and the OpenAPI document.

The product logic is in the packages `units`, `stock`, `storages`, `operations`, `invocations` and `dead_letters`.
"""
