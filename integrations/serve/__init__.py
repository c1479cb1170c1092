"""An HTTP service that grades submissions, runs programs and lends sandboxes: `sandboxkit serve`.

`create_app(config)` returns the ASGI application for your own server, and `serve(config)` runs it with
uvicorn. Each process is one replica; replicas behind a load balancer share no state.
"""

from sandboxkit.integrations._extras import needs

with needs("serve"):
    from sandboxkit.integrations.serve._app import create_app
    from sandboxkit.integrations.serve._config import ServiceConfig
    from sandboxkit.integrations.serve._server import serve
    from sandboxkit.integrations.serve._tokens import Token, read_tokens

__all__ = ["ServiceConfig", "Token", "create_app", "read_tokens", "serve"]
