"""NamespaceService, and the namespace that a request names."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from hivemem.redaction import Rules
from hivemem.v1 import namespace_service_pb2 as pb
from hivemem.v1 import types_pb2

from hivemem_server.domain import limits
from hivemem_server.domain.errors import NotImplementedYet
from hivemem_server.domain.ports import NamespaceStore
from hivemem_server.domain.redactors import redactor
from hivemem_server.domain.validation import Violations, check_labels, page_size
from hivemem_server.domain.values import Namespace, NamespaceSettings
from hivemem_server.rpc import convert
from hivemem_server.rpc.pages import page_key, page_token

DEFAULT = "default"
NOT_BUILT = ("retention", "quota")


def namespace_name(given: str) -> str:
    """The name that a request gives, `default` if it gives none. Raises InvalidField."""
    if not given:
        return DEFAULT
    found = Violations()
    found.identifier("namespace", given)
    found.done()
    return given


class NamespaceServicer:
    """Serves NamespaceService."""

    def __init__(self, store: NamespaceStore) -> None:
        self._store = store

    async def create_namespace(self, request: pb.CreateNamespaceRequest) -> pb.CreateNamespaceResponse:
        """Makes a namespace, or returns the one there."""
        found = Violations()
        found.identifier("namespace", request.namespace)
        settings = _settings(found, request.settings)
        found.done()
        namespace, created = await self._store.create(request.namespace, settings)
        return pb.CreateNamespaceResponse(namespace=message(namespace), created=created)

    async def get_namespace(self, request: pb.GetNamespaceRequest) -> pb.GetNamespaceResponse:
        """Returns one namespace."""
        namespace = await self._store.get(namespace_name(request.namespace))
        return pb.GetNamespaceResponse(namespace=message(namespace))

    async def list_namespaces(self, request: pb.ListNamespacesRequest) -> pb.ListNamespacesResponse:
        """Lists namespaces by name."""
        size = page_size(request.page_size)
        key = page_key(request)
        found = await self._store.page(str(key[0]) if key else "", size + 1)
        return pb.ListNamespacesResponse(
            namespaces=map(message, found[:size]),
            next_page_token=page_token(request, [found[size - 1].name] if len(found) > size else ()),
        )

    async def update_namespace(self, request: pb.UpdateNamespaceRequest) -> pb.UpdateNamespaceResponse:
        """Changes the fields that the mask names."""
        found = Violations()
        settings = _settings(found, request.settings)
        paths = masked(found, request, request.settings, ("description", "labels", "text_language", "redaction"))
        found.done()
        changes = {path: getattr(settings, path) for path in paths}
        namespace = await self._store.update(namespace_name(request.namespace), changes)
        return pb.UpdateNamespaceResponse(namespace=message(namespace))

    async def delete_namespace(self, request: pb.DeleteNamespaceRequest) -> pb.DeleteNamespaceResponse:
        """Removes a namespace with all that it holds; its rows are gone when this returns."""
        found = Violations()
        found.identifier("namespace", request.namespace)
        if request.namespace == DEFAULT:
            found.add("namespace", "`default` cannot be removed")
        found.done()
        removed = await self._store.delete(request.namespace)
        operation = types_pb2.Operation(
            operation_id=str(uuid.uuid4()),
            namespace=request.namespace,
            method="DeleteNamespace",
            state=types_pb2.OPERATION_STATE_SUCCEEDED,
            done_count=removed,
            total_count=removed,
        )
        return pb.DeleteNamespaceResponse(operation=operation)


def masked(found: Violations, request: Message, values: Message, known: Sequence[str]) -> list[str]:
    """The fields to change: those of the mask, or without one those that are set."""
    mask: FieldMask = request.update_mask  # type: ignore[attr-defined]
    if not mask.paths:
        present = {field.name for field, _ in values.ListFields()}
        return [path for path in known if path in present]
    for index, path in enumerate(mask.paths):
        if path not in known:
            found.add(f"update_mask.paths[{index}]", f"must be one of {', '.join(known)}")
    return [path for path in mask.paths if path in known]


def message(namespace: Namespace) -> pb.Namespace:
    """A namespace as a message."""
    settings = namespace.settings
    return pb.Namespace(
        name=namespace.name,
        settings=pb.NamespaceSettings(
            description=settings.description,
            labels=settings.labels,
            text_language=settings.text_language,
            redaction=pb.RedactionSettings(
                enabled=settings.redaction.enabled, kinds=settings.redaction.kinds, patterns=settings.redaction.patterns
            ),
        ),
        first_position=namespace.floor + 1,
        head_position=namespace.head,
        log_epoch=str(namespace.epoch),
        create_time=convert.stamp(namespace.create_time),
        update_time=convert.stamp(namespace.update_time),
    )


def _settings(found: Violations, given: pb.NamespaceSettings) -> NamespaceSettings:
    present = {field.name for field, _ in given.ListFields()}
    for name in NOT_BUILT:
        if name in present:
            raise NotImplementedYet(f"this server has no {name} settings yet: leave settings.{name} unset", field=name)
    found.text("settings.description", given.description, limits.TEXT_BYTES)
    check_labels(found, "settings.labels", given.labels)
    found.text("settings.text_language", given.text_language, limits.TAG_BYTES)
    rules = _rules(given.redaction)
    clean = redactor(rules).redact
    return NamespaceSettings(
        description=clean(given.description),
        labels={key: clean(value) for key, value in given.labels.items()},
        text_language=given.text_language or "english",
        redaction=rules,
    )


def _rules(given: pb.RedactionSettings) -> Rules:
    rules = Rules(
        enabled=given.enabled if given.HasField("enabled") else True,
        kinds=tuple(sorted(set(given.kinds))),
        patterns=tuple(given.patterns),
    )
    redactor(rules)  # raises for what cannot be used
    return rules
