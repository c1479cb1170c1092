"""The base of NeMo Gym's resources servers (August 2026): what `verify` is given and returns.

A request that lacks a field is the status 422; other fields are ignored. The answer is sent as
JSON by the model that `verify` is annotated with. An exception of `verify` is the status 500.
"""

import typing
from typing import Any

from pydantic import BaseModel


class NeMoGymResponse(BaseModel):
    output_text: str


class BaseVerifyRequest(BaseModel):
    """What an agent sends; a server adds fields of the data set's row."""

    responses_create_params: dict[str, Any]
    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    reward: float


class SimpleResourcesServer(BaseModel):
    """A server whose `/verify` a subclass answers."""

    async def post(self, row: dict[str, Any]) -> dict[str, Any]:
        """Answer a POST of /verify as FastAPI does."""
        verify: Any = self.verify  # type: ignore[attr-defined] # of the subclass
        kinds = typing.get_type_hints(verify)
        answer = await verify(kinds["body"].model_validate(row))
        shown: dict[str, Any] = kinds["return"].model_validate(answer).model_dump(mode="json")
        return shown
