from dlpack_wire.v1 import tensor_service_pb2 as _tensor_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_KIND_UNSPECIFIED: _ClassVar[SegmentKind]
    SEGMENT_KIND_SEALED: _ClassVar[SegmentKind]
    SEGMENT_KIND_LEASED: _ClassVar[SegmentKind]
    SEGMENT_KIND_FILE: _ClassVar[SegmentKind]
SEGMENT_KIND_UNSPECIFIED: SegmentKind
SEGMENT_KIND_SEALED: SegmentKind
SEGMENT_KIND_LEASED: SegmentKind
SEGMENT_KIND_FILE: SegmentKind

class Segment(_message.Message):
    __slots__ = ("kind", "size_bytes", "lease_id", "inline_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    INLINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: SegmentKind
    size_bytes: int
    lease_id: int
    inline_bytes: bytes
    def __init__(self, kind: _Optional[_Union[SegmentKind, str]] = ..., size_bytes: _Optional[int] = ..., lease_id: _Optional[int] = ..., inline_bytes: _Optional[bytes] = ...) -> None: ...

class LocalHello(_message.Message):
    __slots__ = ("version", "instance_id", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    instance_id: str
    token: str
    def __init__(self, version: _Optional[int] = ..., instance_id: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class LocalWelcome(_message.Message):
    __slots__ = ("version", "instance_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    instance_id: str
    def __init__(self, version: _Optional[int] = ..., instance_id: _Optional[str] = ...) -> None: ...

class LocalGet(_message.Message):
    __slots__ = ("name", "generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class LocalObject(_message.Message):
    __slots__ = ("object", "segment")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    object: _tensor_service_pb2.ObjectInfo
    segment: Segment
    def __init__(self, object: _Optional[_Union[_tensor_service_pb2.ObjectInfo, _Mapping]] = ..., segment: _Optional[_Union[Segment, _Mapping]] = ...) -> None: ...

class LocalPut(_message.Message):
    __slots__ = ("name", "upload_id", "if_generation", "segment")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    IF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    upload_id: bytes
    if_generation: int
    segment: Segment
    def __init__(self, name: _Optional[str] = ..., upload_id: _Optional[bytes] = ..., if_generation: _Optional[int] = ..., segment: _Optional[_Union[Segment, _Mapping]] = ...) -> None: ...

class LocalPutDone(_message.Message):
    __slots__ = ("generation", "already_committed")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    already_committed: bool
    def __init__(self, generation: _Optional[int] = ..., already_committed: bool = ...) -> None: ...

class LocalSubscribe(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: _tensor_service_pb2.SubscribeRequest
    def __init__(self, request: _Optional[_Union[_tensor_service_pb2.SubscribeRequest, _Mapping]] = ...) -> None: ...

class LocalFrame(_message.Message):
    __slots__ = ("frame", "start", "caught_up", "payload_offset", "segment")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    frame: _tensor_service_pb2.Frame
    start: _tensor_service_pb2.SubscribeStart
    caught_up: bool
    payload_offset: int
    segment: Segment
    def __init__(self, frame: _Optional[_Union[_tensor_service_pb2.Frame, _Mapping]] = ..., start: _Optional[_Union[_tensor_service_pb2.SubscribeStart, _Mapping]] = ..., caught_up: bool = ..., payload_offset: _Optional[int] = ..., segment: _Optional[_Union[Segment, _Mapping]] = ...) -> None: ...

class LocalAllocate(_message.Message):
    __slots__ = ("size_bytes",)
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    def __init__(self, size_bytes: _Optional[int] = ...) -> None: ...

class LocalAllocated(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: Segment
    def __init__(self, segment: _Optional[_Union[Segment, _Mapping]] = ...) -> None: ...

class LocalRelease(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LocalPublish(_message.Message):
    __slots__ = ("frame", "payload_offset", "segment")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    frame: _tensor_service_pb2.Frame
    payload_offset: int
    segment: Segment
    def __init__(self, frame: _Optional[_Union[_tensor_service_pb2.Frame, _Mapping]] = ..., payload_offset: _Optional[int] = ..., segment: _Optional[_Union[Segment, _Mapping]] = ...) -> None: ...

class LocalError(_message.Message):
    __slots__ = ("code", "reason", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: _tensor_service_pb2.ErrorReason
    message: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[_Union[_tensor_service_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class LocalRequest(_message.Message):
    __slots__ = ("request_id", "hello", "get", "put", "subscribe", "allocate", "release", "publish")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    hello: LocalHello
    get: LocalGet
    put: LocalPut
    subscribe: LocalSubscribe
    allocate: LocalAllocate
    release: LocalRelease
    publish: LocalPublish
    def __init__(self, request_id: _Optional[int] = ..., hello: _Optional[_Union[LocalHello, _Mapping]] = ..., get: _Optional[_Union[LocalGet, _Mapping]] = ..., put: _Optional[_Union[LocalPut, _Mapping]] = ..., subscribe: _Optional[_Union[LocalSubscribe, _Mapping]] = ..., allocate: _Optional[_Union[LocalAllocate, _Mapping]] = ..., release: _Optional[_Union[LocalRelease, _Mapping]] = ..., publish: _Optional[_Union[LocalPublish, _Mapping]] = ...) -> None: ...

class LocalResponse(_message.Message):
    __slots__ = ("request_id", "welcome", "object", "put_done", "frame", "allocated", "published", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    PUT_DONE_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    welcome: LocalWelcome
    object: LocalObject
    put_done: LocalPutDone
    frame: LocalFrame
    allocated: LocalAllocated
    published: _tensor_service_pb2.PublishResponse
    error: LocalError
    def __init__(self, request_id: _Optional[int] = ..., welcome: _Optional[_Union[LocalWelcome, _Mapping]] = ..., object: _Optional[_Union[LocalObject, _Mapping]] = ..., put_done: _Optional[_Union[LocalPutDone, _Mapping]] = ..., frame: _Optional[_Union[LocalFrame, _Mapping]] = ..., allocated: _Optional[_Union[LocalAllocated, _Mapping]] = ..., published: _Optional[_Union[_tensor_service_pb2.PublishResponse, _Mapping]] = ..., error: _Optional[_Union[LocalError, _Mapping]] = ...) -> None: ...
