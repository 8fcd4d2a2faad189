"""The edge: routes as data, who calls, what an answer looks like, the OpenAPI document. No product decisions here."""
