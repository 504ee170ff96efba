from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DLDeviceType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kDLDeviceUnspecified: _ClassVar[DLDeviceType]
    kDLCPU: _ClassVar[DLDeviceType]
    kDLCUDA: _ClassVar[DLDeviceType]
    kDLCUDAHost: _ClassVar[DLDeviceType]
    kDLOpenCL: _ClassVar[DLDeviceType]
    kDLVulkan: _ClassVar[DLDeviceType]
    kDLMetal: _ClassVar[DLDeviceType]
    kDLVPI: _ClassVar[DLDeviceType]
    kDLROCM: _ClassVar[DLDeviceType]
    kDLROCMHost: _ClassVar[DLDeviceType]
    kDLExtDev: _ClassVar[DLDeviceType]
    kDLCUDAManaged: _ClassVar[DLDeviceType]
    kDLOneAPI: _ClassVar[DLDeviceType]
    kDLWebGPU: _ClassVar[DLDeviceType]
    kDLHexagon: _ClassVar[DLDeviceType]
    kDLMAIA: _ClassVar[DLDeviceType]
    kDLTrn: _ClassVar[DLDeviceType]
    kDLTPU: _ClassVar[DLDeviceType]
    kDLTPUHost: _ClassVar[DLDeviceType]

class DLDataTypeCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kDLInt: _ClassVar[DLDataTypeCode]
    kDLUInt: _ClassVar[DLDataTypeCode]
    kDLFloat: _ClassVar[DLDataTypeCode]
    kDLOpaqueHandle: _ClassVar[DLDataTypeCode]
    kDLBfloat: _ClassVar[DLDataTypeCode]
    kDLComplex: _ClassVar[DLDataTypeCode]
    kDLBool: _ClassVar[DLDataTypeCode]
    kDLFloat8_e3m4: _ClassVar[DLDataTypeCode]
    kDLFloat8_e4m3: _ClassVar[DLDataTypeCode]
    kDLFloat8_e4m3b11fnuz: _ClassVar[DLDataTypeCode]
    kDLFloat8_e4m3fn: _ClassVar[DLDataTypeCode]
    kDLFloat8_e4m3fnuz: _ClassVar[DLDataTypeCode]
    kDLFloat8_e5m2: _ClassVar[DLDataTypeCode]
    kDLFloat8_e5m2fnuz: _ClassVar[DLDataTypeCode]
    kDLFloat8_e8m0fnu: _ClassVar[DLDataTypeCode]
    kDLFloat6_e2m3fn: _ClassVar[DLDataTypeCode]
    kDLFloat6_e3m2fn: _ClassVar[DLDataTypeCode]
    kDLFloat4_e2m1fn: _ClassVar[DLDataTypeCode]
    kDLBComplex: _ClassVar[DLDataTypeCode]

class ByteOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BYTE_ORDER_UNSPECIFIED: _ClassVar[ByteOrder]
    BYTE_ORDER_LITTLE_ENDIAN: _ClassVar[ByteOrder]
    BYTE_ORDER_BIG_ENDIAN: _ClassVar[ByteOrder]
kDLDeviceUnspecified: DLDeviceType
kDLCPU: DLDeviceType
kDLCUDA: DLDeviceType
kDLCUDAHost: DLDeviceType
kDLOpenCL: DLDeviceType
kDLVulkan: DLDeviceType
kDLMetal: DLDeviceType
kDLVPI: DLDeviceType
kDLROCM: DLDeviceType
kDLROCMHost: DLDeviceType
kDLExtDev: DLDeviceType
kDLCUDAManaged: DLDeviceType
kDLOneAPI: DLDeviceType
kDLWebGPU: DLDeviceType
kDLHexagon: DLDeviceType
kDLMAIA: DLDeviceType
kDLTrn: DLDeviceType
kDLTPU: DLDeviceType
kDLTPUHost: DLDeviceType
kDLInt: DLDataTypeCode
kDLUInt: DLDataTypeCode
kDLFloat: DLDataTypeCode
kDLOpaqueHandle: DLDataTypeCode
kDLBfloat: DLDataTypeCode
kDLComplex: DLDataTypeCode
kDLBool: DLDataTypeCode
kDLFloat8_e3m4: DLDataTypeCode
kDLFloat8_e4m3: DLDataTypeCode
kDLFloat8_e4m3b11fnuz: DLDataTypeCode
kDLFloat8_e4m3fn: DLDataTypeCode
kDLFloat8_e4m3fnuz: DLDataTypeCode
kDLFloat8_e5m2: DLDataTypeCode
kDLFloat8_e5m2fnuz: DLDataTypeCode
kDLFloat8_e8m0fnu: DLDataTypeCode
kDLFloat6_e2m3fn: DLDataTypeCode
kDLFloat6_e3m2fn: DLDataTypeCode
kDLFloat4_e2m1fn: DLDataTypeCode
kDLBComplex: DLDataTypeCode
BYTE_ORDER_UNSPECIFIED: ByteOrder
BYTE_ORDER_LITTLE_ENDIAN: ByteOrder
BYTE_ORDER_BIG_ENDIAN: ByteOrder

class DLPackVersion(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class DLDevice(_message.Message):
    __slots__ = ("device_type", "device_id")
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    device_type: DLDeviceType
    device_id: int
    def __init__(self, device_type: _Optional[_Union[DLDeviceType, str]] = ..., device_id: _Optional[int] = ...) -> None: ...

class DLDataType(_message.Message):
    __slots__ = ("code", "bits", "lanes")
    CODE_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    code: DLDataTypeCode
    bits: int
    lanes: int
    def __init__(self, code: _Optional[_Union[DLDataTypeCode, str]] = ..., bits: _Optional[int] = ..., lanes: _Optional[int] = ...) -> None: ...

class DLTensor(_message.Message):
    __slots__ = ("version", "flags", "device", "dtype", "shape", "strides", "byte_offset", "byte_order", "data_sum", "padding", "data")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTE_ORDER_FIELD_NUMBER: _ClassVar[int]
    DATA_SUM_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    version: DLPackVersion
    flags: int
    device: DLDevice
    dtype: DLDataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    byte_offset: int
    byte_order: ByteOrder
    data_sum: int
    padding: bytes
    data: bytes
    def __init__(self, version: _Optional[_Union[DLPackVersion, _Mapping]] = ..., flags: _Optional[int] = ..., device: _Optional[_Union[DLDevice, _Mapping]] = ..., dtype: _Optional[_Union[DLDataType, _Mapping]] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., byte_offset: _Optional[int] = ..., byte_order: _Optional[_Union[ByteOrder, str]] = ..., data_sum: _Optional[int] = ..., padding: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...
