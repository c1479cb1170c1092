"""Modal's control plane, with calls for apps, images and sandboxes from the SDK's service definition."""

import time
from typing import Any

from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]  # no stubs
from grpclib import GRPCError, Status
from modal._utils.grpc_testing import patch_mock_servicer
from modal_proto import api_grpc, api_pb2

from tests.emulators.modal._boxes import V1, V2, Box, Boxes, environment
from tests.emulators.modal._wire import Wire

_BUILDER = "2025.06"
_PAGE = 3
"""Maximum number of sandboxes per page of a listing; small, so that tests also read a second page."""
_MISSING_IMAGE = "no-such-image"
"""An image whose reference contains this text does not exist in any registry."""
_Result = api_pb2.GenericResult


# Any: its methods are functions of requests instead of streams, see `Checked`.
_Base: Any = api_grpc.ModalClientBase


@patch_mock_servicer
class Control(_Base):  # type: ignore[misc]
    """The calls that our provider makes through the SDK; all others are UNIMPLEMENTED."""

    def __init__(self, wire: Wire, boxes: Boxes, url: str) -> None:
        """`url` is the worker's address, which is this same server."""
        self._wire, self._boxes, self.url = wire, boxes, url
        self._apps: dict[str, str] = {}
        self._images: dict[str, str] = {}

    async def ClientHello(self, request: Any) -> Any:
        return api_pb2.ClientHelloResponse(image_builder_version=_BUILDER)

    async def AuthTokenGet(self, request: Any) -> Any:
        return api_pb2.AuthTokenGetResponse(token=self._wire.issue())

    async def EnvironmentGetOrCreate(self, request: Any) -> Any:
        metadata = api_pb2.EnvironmentMetadata(
            name="main", settings=api_pb2.EnvironmentSettings(image_builder_version=_BUILDER)
        )
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def AppGetOrCreate(self, request: Any) -> Any:
        create = request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        if request.app_name not in self._apps and not create:
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_name!r} not found")
        app_id = self._apps.setdefault(request.app_name, f"ap-{len(self._apps):022d}")
        return api_pb2.AppGetOrCreateResponse(app_id=app_id)

    async def ImageGetOrCreate(self, request: Any) -> Any:
        """Begin to build an image; as with Modal, ImageJoinStreaming returns the result."""
        text = "\n".join(request.image.dockerfile_commands)
        if request.app_id not in self._apps.values():
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_id!r} not found")
        image_id = self._images.setdefault(text, f"im-{len(self._images):022d}")
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id)

    async def ImageJoinStreaming(self, stream: Any) -> None:
        request = await stream.recv_message()
        text = next((t for t, image in self._images.items() if image == request.image_id), None)
        if text is None:
            raise GRPCError(Status.NOT_FOUND, f"Image {request.image_id!r} not found")
        result = _Result(status=_Result.GENERIC_STATUS_SUCCESS)
        if _MISSING_IMAGE in text:
            message = "Failed to resolve reference: pull access denied, repository does not exist"
            result = _Result(status=_Result.GENERIC_STATUS_FAILURE, exception=message)
        metadata = api_pb2.ImageMetadata(
            python_version_info="3.11.9", image_builder_version=_BUILDER
        )
        await stream.send_message(
            api_pb2.ImageJoinStreamingResponse(result=result, eof=True, metadata=metadata)
        )

    async def ImageDelete(self, request: Any) -> Any:
        if not await self._boxes.snapshots.remove(request.image_id):
            raise GRPCError(Status.NOT_FOUND, f"Image {request.image_id!r} not found")
        return Empty()

    def _check_image(self, image_id: str) -> None:
        if image_id not in self._images.values() and not self._boxes.has_image(image_id):
            raise GRPCError(Status.NOT_FOUND, f"Image {image_id!r} not found")

    async def ImageFromId(self, request: Any) -> Any:
        self._check_image(request.image_id)
        return api_pb2.ImageFromIdResponse(image_id=request.image_id)

    async def SandboxCreateV2(self, request: Any) -> Any:
        box = await self._create(request, V2, environment(request.secret_sources))
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=box.id,
            task_id=box.task_id,
            metadata=api_pb2.SandboxHandleMetadata(app_id=box.app_id),
            command_router_access=api_pb2.CommandRouterAccess(url=self.url, jwt=self._wire.issue()),
        )

    async def SandboxCreate(self, request: Any) -> Any:
        assert not request.definition.secret_ids
        box = await self._create(request, V1, {})
        metadata = api_pb2.SandboxHandleMetadata(app_id=box.app_id)
        return api_pb2.SandboxCreateResponse(sandbox_id=box.id, metadata=metadata)

    async def _create(self, request: Any, kind: str, env: dict[str, str]) -> Box:
        if request.app_id not in self._apps.values():
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_id!r} not found")
        self._check_image(request.definition.image_id)
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return await self._boxes.create(kind, request.app_id, request.definition, tags, env)

    async def SandboxGetTaskId(self, request: Any) -> Any:
        box = self._boxes.find(request.sandbox_id)
        if box.result is not None:
            return api_pb2.SandboxGetTaskIdResponse(task_result=box.result)
        scheduled = box.ready.is_set()
        return api_pb2.SandboxGetTaskIdResponse(task_id=box.task_id if scheduled else None)

    SandboxGetTaskIdV2 = SandboxGetTaskId

    async def SandboxGetCommandRouterAccess(self, request: Any) -> Any:
        box = self._boxes.find(request.sandbox_id)
        if box.result is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, f"Sandbox {box.id} has already finished")
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=self._wire.issue())

    async def TaskGetCommandRouterAccess(self, request: Any) -> Any:
        box = self._boxes.of_task(request.task_id)
        if box.result is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, f"Task {box.task_id} has already finished")
        return api_pb2.TaskGetCommandRouterAccessResponse(url=self.url, jwt=self._wire.issue())

    async def SandboxGetTunnels(self, request: Any) -> Any:
        box = self._boxes.find(request.sandbox_id)
        tunnels = [
            api_pb2.TunnelData(host=f"p{port.port}.modal.test", port=443, container_port=port.port)
            for port in box.definition.open_ports.ports
        ]
        return api_pb2.SandboxGetTunnelsResponse(tunnels=tunnels)

    SandboxGetTunnelsV2 = SandboxGetTunnels

    async def SandboxWait(self, request: Any) -> Any:
        box = self._boxes.find(request.sandbox_id)
        await box.wait(request.timeout)
        metadata = api_pb2.SandboxHandleMetadata(app_id=box.app_id, result=box.result)
        return api_pb2.SandboxWaitResponse(result=box.result or _Result(), metadata=metadata)

    SandboxWaitV2 = SandboxWait

    async def SandboxTerminate(self, request: Any) -> Any:
        box = self._boxes.find(request.sandbox_id)
        before = box.result
        await self._boxes.finish(box, _Result(status=_Result.GENERIC_STATUS_TERMINATED))
        return api_pb2.SandboxTerminateResponse(existing_result=before)

    SandboxTerminateV2 = SandboxTerminate

    async def SandboxTagsGet(self, request: Any) -> Any:
        box = self._boxes.find(request.sandbox_id)
        return api_pb2.SandboxTagsGetResponse(tags=_tags(box))

    SandboxTagsGetV2 = SandboxTagsGet

    async def SandboxGetFromNameV2(self, request: Any) -> Any:
        app_id = self._apps.get(request.app_name)
        for box in self._boxes.running():
            if box.app_id == app_id and box.name == request.sandbox_name:
                metadata = api_pb2.SandboxHandleMetadata(app_id=box.app_id)
                return api_pb2.SandboxGetFromNameResponse(sandbox_id=box.id, metadata=metadata)
        raise GRPCError(Status.NOT_FOUND, f"Sandbox with name {request.sandbox_name!r} not found")

    SandboxGetFromName = SandboxGetFromNameV2

    async def SandboxListV2(self, request: Any) -> Any:
        """List sandboxes created before `before_timestamp`, newest first, one page per call."""
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        before = request.before_timestamp or time.time() + 1e6
        found = [
            box
            for box in self._boxes.running()
            if box.created_at < before
            and box.app_id == (request.app_id or box.app_id)
            and wanted.items() <= box.tags.items()
        ]
        found.sort(key=lambda box: -box.created_at)
        return api_pb2.SandboxListResponse(sandboxes=[_info(box) for box in found[:_PAGE]])


def _tags(box: Box) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=key, tag_value=value) for key, value in box.tags.items()]


def _info(box: Box) -> api_pb2.SandboxInfo:
    return api_pb2.SandboxInfo(
        id=box.id,
        created_at=box.created_at,
        app_id=box.app_id,
        name=box.name,
        tags=_tags(box),
        task_info=api_pb2.TaskInfo(id=box.task_id, sandbox_id=box.id),
        timeout_secs=box.timeout,
        metadata=api_pb2.SandboxHandleMetadata(app_id=box.app_id),
    )
