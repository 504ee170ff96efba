from dlpack_wire.v1 import dlpack_pb2 as _dlpack_pb2
from dlpack_wire.v1 import tensor_file_pb2 as _tensor_file_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeliveryPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_POLICY_UNSPECIFIED: _ClassVar[DeliveryPolicy]
    DELIVERY_POLICY_LATEST: _ClassVar[DeliveryPolicy]
    DELIVERY_POLICY_DROP_OLDEST: _ClassVar[DeliveryPolicy]
    DELIVERY_POLICY_RELIABLE: _ClassVar[DeliveryPolicy]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_NAME: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_TENSOR: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_OUT_OF_RANGE: _ClassVar[ErrorReason]
    ERROR_REASON_CHUNK_OUT_OF_ORDER: _ClassVar[ErrorReason]
    ERROR_REASON_CHECKSUM_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_GENERATION_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_UPLOAD_IN_PROGRESS: _ClassVar[ErrorReason]
    ERROR_REASON_UPLOAD_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_UPLOAD_INCOMPLETE: _ClassVar[ErrorReason]
    ERROR_REASON_OBJECT_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_TENSOR_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_OBJECT_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_HEADERS_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_SUBSCRIBER_TOO_SLOW: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_SUBSCRIBERS: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_REQUESTS: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_SHUTTING_DOWN: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
DELIVERY_POLICY_UNSPECIFIED: DeliveryPolicy
DELIVERY_POLICY_LATEST: DeliveryPolicy
DELIVERY_POLICY_DROP_OLDEST: DeliveryPolicy
DELIVERY_POLICY_RELIABLE: DeliveryPolicy
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_NAME: ErrorReason
ERROR_REASON_INVALID_TENSOR: ErrorReason
ERROR_REASON_INVALID_REQUEST: ErrorReason
ERROR_REASON_OUT_OF_RANGE: ErrorReason
ERROR_REASON_CHUNK_OUT_OF_ORDER: ErrorReason
ERROR_REASON_CHECKSUM_MISMATCH: ErrorReason
ERROR_REASON_GENERATION_MISMATCH: ErrorReason
ERROR_REASON_UPLOAD_IN_PROGRESS: ErrorReason
ERROR_REASON_UPLOAD_NOT_FOUND: ErrorReason
ERROR_REASON_UPLOAD_INCOMPLETE: ErrorReason
ERROR_REASON_OBJECT_NOT_FOUND: ErrorReason
ERROR_REASON_TENSOR_NOT_FOUND: ErrorReason
ERROR_REASON_OBJECT_TOO_LARGE: ErrorReason
ERROR_REASON_STORE_FULL: ErrorReason
ERROR_REASON_HEADERS_TOO_LARGE: ErrorReason
ERROR_REASON_SUBSCRIBER_TOO_SLOW: ErrorReason
ERROR_REASON_TOO_MANY_SUBSCRIBERS: ErrorReason
ERROR_REASON_TOO_MANY_REQUESTS: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason

class Chunk(_message.Message):
    __slots__ = ("tensor_index", "offset", "block_sums", "data")
    TENSOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SUMS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    tensor_index: int
    offset: int
    block_sums: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, tensor_index: _Optional[int] = ..., offset: _Optional[int] = ..., block_sums: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ObjectInfo(_message.Message):
    __slots__ = ("name", "generation", "tensor_count", "payload_bytes", "created_time_ns", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_file_pb2.MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_file_pb2.MetadataValue, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    tensor_count: int
    payload_bytes: int
    created_time_ns: int
    metadata: _containers.MessageMap[str, _tensor_file_pb2.MetadataValue]
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., tensor_count: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., created_time_ns: _Optional[int] = ..., metadata: _Optional[_Mapping[str, _tensor_file_pb2.MetadataValue]] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("server_version", "instance_id", "max_message_bytes", "inline_payload_bytes", "max_chunk_bytes", "max_object_bytes", "max_tensor_count", "upload_retention_ns", "methods", "features", "contract_revision", "max_frame_bytes", "default_queue_frame_count", "max_queue_frame_count", "default_queue_bytes", "max_queue_bytes", "max_pattern_count", "max_metadata_bytes", "max_unfinished_bytes")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TENSOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_RETENTION_NS_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_QUEUE_FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PATTERN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_METADATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_UNFINISHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    instance_id: str
    max_message_bytes: int
    inline_payload_bytes: int
    max_chunk_bytes: int
    max_object_bytes: int
    max_tensor_count: int
    upload_retention_ns: int
    methods: _containers.RepeatedScalarFieldContainer[str]
    features: _containers.RepeatedScalarFieldContainer[str]
    contract_revision: int
    max_frame_bytes: int
    default_queue_frame_count: int
    max_queue_frame_count: int
    default_queue_bytes: int
    max_queue_bytes: int
    max_pattern_count: int
    max_metadata_bytes: int
    max_unfinished_bytes: int
    def __init__(self, server_version: _Optional[str] = ..., instance_id: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., inline_payload_bytes: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ..., max_object_bytes: _Optional[int] = ..., max_tensor_count: _Optional[int] = ..., upload_retention_ns: _Optional[int] = ..., methods: _Optional[_Iterable[str]] = ..., features: _Optional[_Iterable[str]] = ..., contract_revision: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ..., default_queue_frame_count: _Optional[int] = ..., max_queue_frame_count: _Optional[int] = ..., default_queue_bytes: _Optional[int] = ..., max_queue_bytes: _Optional[int] = ..., max_pattern_count: _Optional[int] = ..., max_metadata_bytes: _Optional[int] = ..., max_unfinished_bytes: _Optional[int] = ...) -> None: ...

class StoreRequest(_message.Message):
    __slots__ = ("name", "upload_id", "if_generation", "metadata", "records")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_file_pb2.MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_file_pb2.MetadataValue, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    IF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    upload_id: bytes
    if_generation: int
    metadata: _containers.MessageMap[str, _tensor_file_pb2.MetadataValue]
    records: _containers.RepeatedCompositeFieldContainer[_tensor_file_pb2.TensorRecord]
    def __init__(self, name: _Optional[str] = ..., upload_id: _Optional[bytes] = ..., if_generation: _Optional[int] = ..., metadata: _Optional[_Mapping[str, _tensor_file_pb2.MetadataValue]] = ..., records: _Optional[_Iterable[_Union[_tensor_file_pb2.TensorRecord, _Mapping]]] = ...) -> None: ...

class StoreResponse(_message.Message):
    __slots__ = ("generation", "already_committed")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    already_committed: bool
    def __init__(self, generation: _Optional[int] = ..., already_committed: bool = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("name", "tensors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("object", "records", "complete", "chunks")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    object: ObjectInfo
    records: _containers.RepeatedCompositeFieldContainer[_tensor_file_pb2.TensorRecord]
    complete: bool
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, object: _Optional[_Union[ObjectInfo, _Mapping]] = ..., records: _Optional[_Iterable[_Union[_tensor_file_pb2.TensorRecord, _Mapping]]] = ..., complete: bool = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...

class PutStart(_message.Message):
    __slots__ = ("name", "upload_id", "if_generation", "metadata", "record_count", "payload_bytes", "resume")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_file_pb2.MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_file_pb2.MetadataValue, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    IF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    name: str
    upload_id: bytes
    if_generation: int
    metadata: _containers.MessageMap[str, _tensor_file_pb2.MetadataValue]
    record_count: int
    payload_bytes: int
    resume: bool
    def __init__(self, name: _Optional[str] = ..., upload_id: _Optional[bytes] = ..., if_generation: _Optional[int] = ..., metadata: _Optional[_Mapping[str, _tensor_file_pb2.MetadataValue]] = ..., record_count: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., resume: bool = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("start", "records", "finish", "chunk")
    START_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    start: PutStart
    records: _containers.RepeatedCompositeFieldContainer[_tensor_file_pb2.TensorRecord]
    finish: bool
    chunk: Chunk
    def __init__(self, start: _Optional[_Union[PutStart, _Mapping]] = ..., records: _Optional[_Iterable[_Union[_tensor_file_pb2.TensorRecord, _Mapping]]] = ..., finish: bool = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("generation", "already_committed")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    already_committed: bool
    def __init__(self, generation: _Optional[int] = ..., already_committed: bool = ...) -> None: ...

class GetUploadStatusRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: bytes
    def __init__(self, upload_id: _Optional[bytes] = ...) -> None: ...

class GetUploadStatusResponse(_message.Message):
    __slots__ = ("state", "generation", "tensor_index", "offset", "held_sum")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[GetUploadStatusResponse.State]
        RECEIVING: _ClassVar[GetUploadStatusResponse.State]
        COMMITTED: _ClassVar[GetUploadStatusResponse.State]
    UNKNOWN: GetUploadStatusResponse.State
    RECEIVING: GetUploadStatusResponse.State
    COMMITTED: GetUploadStatusResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HELD_SUM_FIELD_NUMBER: _ClassVar[int]
    state: GetUploadStatusResponse.State
    generation: int
    tensor_index: int
    offset: int
    held_sum: int
    def __init__(self, state: _Optional[_Union[GetUploadStatusResponse.State, str]] = ..., generation: _Optional[int] = ..., tensor_index: _Optional[int] = ..., offset: _Optional[int] = ..., held_sum: _Optional[int] = ...) -> None: ...

class DiscardUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: bytes
    def __init__(self, upload_id: _Optional[bytes] = ...) -> None: ...

class DiscardUploadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AxisSelection(_message.Message):
    __slots__ = ("index", "range")
    class Range(_message.Message):
        __slots__ = ("start", "stop", "step")
        START_FIELD_NUMBER: _ClassVar[int]
        STOP_FIELD_NUMBER: _ClassVar[int]
        STEP_FIELD_NUMBER: _ClassVar[int]
        start: int
        stop: int
        step: int
        def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    index: int
    range: AxisSelection.Range
    def __init__(self, index: _Optional[int] = ..., range: _Optional[_Union[AxisSelection.Range, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("name", "tensors", "generation", "selections", "start_tensor_index", "start_offset", "max_chunk_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    START_TENSOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensors: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    selections: _containers.RepeatedCompositeFieldContainer[AxisSelection]
    start_tensor_index: int
    start_offset: int
    max_chunk_bytes: int
    def __init__(self, name: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., selections: _Optional[_Iterable[_Union[AxisSelection, _Mapping]]] = ..., start_tensor_index: _Optional[int] = ..., start_offset: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("object", "record_count", "records", "chunk")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    object: ObjectInfo
    record_count: int
    records: _containers.RepeatedCompositeFieldContainer[_tensor_file_pb2.TensorRecord]
    chunk: Chunk
    def __init__(self, object: _Optional[_Union[ObjectInfo, _Mapping]] = ..., record_count: _Optional[int] = ..., records: _Optional[_Iterable[_Union[_tensor_file_pb2.TensorRecord, _Mapping]]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ("name", "first_record", "max_record_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_RECORD_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    first_record: int
    max_record_count: int
    def __init__(self, name: _Optional[str] = ..., first_record: _Optional[int] = ..., max_record_count: _Optional[int] = ...) -> None: ...

class StatResponse(_message.Message):
    __slots__ = ("object", "records", "next_record")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_RECORD_FIELD_NUMBER: _ClassVar[int]
    object: ObjectInfo
    records: _containers.RepeatedCompositeFieldContainer[_tensor_file_pb2.TensorRecord]
    next_record: int
    def __init__(self, object: _Optional[_Union[ObjectInfo, _Mapping]] = ..., records: _Optional[_Iterable[_Union[_tensor_file_pb2.TensorRecord, _Mapping]]] = ..., next_record: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("prefix", "page_size", "page_token")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    page_size: int
    page_token: str
    def __init__(self, prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("objects", "next_page_token")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectInfo]
    next_page_token: str
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("name", "if_generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    if_generation: int
    def __init__(self, name: _Optional[str] = ..., if_generation: _Optional[int] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("topic", "sequence", "time_ns", "metadata", "dropped_count", "header")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_file_pb2.MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_file_pb2.MetadataValue, _Mapping]] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DROPPED_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    sequence: int
    time_ns: int
    metadata: _containers.MessageMap[str, _tensor_file_pb2.MetadataValue]
    dropped_count: int
    header: _dlpack_pb2.DLTensor
    def __init__(self, topic: _Optional[str] = ..., sequence: _Optional[int] = ..., time_ns: _Optional[int] = ..., metadata: _Optional[_Mapping[str, _tensor_file_pb2.MetadataValue]] = ..., dropped_count: _Optional[int] = ..., header: _Optional[_Union[_dlpack_pb2.DLTensor, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("frame", "chunk")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    frame: Frame
    chunk: Chunk
    def __init__(self, frame: _Optional[_Union[Frame, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("topic", "last_sequence", "subscriber_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    last_sequence: int
    subscriber_count: int
    def __init__(self, topic: _Optional[str] = ..., last_sequence: _Optional[int] = ..., subscriber_count: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("patterns", "policy", "queue_frame_count", "queue_bytes", "skip_retained")
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SKIP_RETAINED_FIELD_NUMBER: _ClassVar[int]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    policy: DeliveryPolicy
    queue_frame_count: int
    queue_bytes: int
    skip_retained: bool
    def __init__(self, patterns: _Optional[_Iterable[str]] = ..., policy: _Optional[_Union[DeliveryPolicy, str]] = ..., queue_frame_count: _Optional[int] = ..., queue_bytes: _Optional[int] = ..., skip_retained: bool = ...) -> None: ...

class SubscribeStart(_message.Message):
    __slots__ = ("instance_id", "queue_frame_count", "queue_bytes")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    queue_frame_count: int
    queue_bytes: int
    def __init__(self, instance_id: _Optional[str] = ..., queue_frame_count: _Optional[int] = ..., queue_bytes: _Optional[int] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("start", "caught_up", "frame", "chunk")
    START_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    start: SubscribeStart
    caught_up: bool
    frame: Frame
    chunk: Chunk
    def __init__(self, start: _Optional[_Union[SubscribeStart, _Mapping]] = ..., caught_up: bool = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...
