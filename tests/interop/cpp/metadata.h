// Metadata: map entries of a key and a MetadataValue (N3 to N5).

#ifndef INTEROP_METADATA_H_
#define INTEROP_METADATA_H_

#include <map>
#include <vector>

#include "dlpack_wire/v1/tensor_file.pb.h"
#include "wire.h"

namespace interop {

// Checks the map entries of one record, entry or index of a file, in their order on the wire.
void check_metadata(const std::vector<Bytes>& entries);

// The values of checked metadata, serialized, by their keys.
std::map<Bytes, Bytes> metadata_values(const std::vector<Bytes>& entries);

// One map entry, as field `number`. Writers add keys in the order of their bytes.
std::string metadata_field(uint32_t number, Bytes key, const dlpack_wire::v1::MetadataValue& value);

}  // namespace interop

#endif  // INTEROP_METADATA_H_
