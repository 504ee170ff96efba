from dlpack_wire.v1 import dlpack_pb2 as _dlpack_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MetadataValue(_message.Message):
    __slots__ = ("string_value", "int_value", "double_value", "bool_value", "bytes_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    int_value: int
    double_value: float
    bool_value: bool
    bytes_value: bytes
    def __init__(self, string_value: _Optional[str] = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., bool_value: bool = ..., bytes_value: _Optional[bytes] = ...) -> None: ...

class TensorRecord(_message.Message):
    __slots__ = ("name", "aliases", "metadata", "header_xxh3_64", "tensor")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MetadataValue, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    HEADER_XXH3_64_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    metadata: _containers.MessageMap[str, MetadataValue]
    header_xxh3_64: int
    tensor: _dlpack_pb2.DLTensor
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Mapping[str, MetadataValue]] = ..., header_xxh3_64: _Optional[int] = ..., tensor: _Optional[_Union[_dlpack_pb2.DLTensor, _Mapping]] = ...) -> None: ...

class TensorFileIndex(_message.Message):
    __slots__ = ("entries", "metadata", "base_index_offset", "base_index_xxh3_64")
    class Entry(_message.Message):
        __slots__ = ("name", "aliases", "metadata", "header", "block_sums", "record_offset", "data_offset", "data_bytes")
        class MetadataEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: MetadataValue
            def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MetadataValue, _Mapping]] = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        ALIASES_FIELD_NUMBER: _ClassVar[int]
        METADATA_FIELD_NUMBER: _ClassVar[int]
        HEADER_FIELD_NUMBER: _ClassVar[int]
        BLOCK_SUMS_FIELD_NUMBER: _ClassVar[int]
        RECORD_OFFSET_FIELD_NUMBER: _ClassVar[int]
        DATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
        DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
        name: str
        aliases: _containers.RepeatedScalarFieldContainer[str]
        metadata: _containers.MessageMap[str, MetadataValue]
        header: _dlpack_pb2.DLTensor
        block_sums: _containers.RepeatedScalarFieldContainer[int]
        record_offset: int
        data_offset: int
        data_bytes: int
        def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Mapping[str, MetadataValue]] = ..., header: _Optional[_Union[_dlpack_pb2.DLTensor, _Mapping]] = ..., block_sums: _Optional[_Iterable[int]] = ..., record_offset: _Optional[int] = ..., data_offset: _Optional[int] = ..., data_bytes: _Optional[int] = ...) -> None: ...
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MetadataValue, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    BASE_INDEX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_INDEX_XXH3_64_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[TensorFileIndex.Entry]
    metadata: _containers.MessageMap[str, MetadataValue]
    base_index_offset: int
    base_index_xxh3_64: int
    def __init__(self, entries: _Optional[_Iterable[_Union[TensorFileIndex.Entry, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, MetadataValue]] = ..., base_index_offset: _Optional[int] = ..., base_index_xxh3_64: _Optional[int] = ...) -> None: ...

class TensorFile(_message.Message):
    __slots__ = ("magic", "records", "indexes", "index_offset", "index_xxh3_64", "end_magic")
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    INDEX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    INDEX_XXH3_64_FIELD_NUMBER: _ClassVar[int]
    END_MAGIC_FIELD_NUMBER: _ClassVar[int]
    magic: int
    records: _containers.RepeatedCompositeFieldContainer[TensorRecord]
    indexes: _containers.RepeatedCompositeFieldContainer[TensorFileIndex]
    index_offset: int
    index_xxh3_64: int
    end_magic: int
    def __init__(self, magic: _Optional[int] = ..., records: _Optional[_Iterable[_Union[TensorRecord, _Mapping]]] = ..., indexes: _Optional[_Iterable[_Union[TensorFileIndex, _Mapping]]] = ..., index_offset: _Optional[int] = ..., index_xxh3_64: _Optional[int] = ..., end_magic: _Optional[int] = ...) -> None: ...
