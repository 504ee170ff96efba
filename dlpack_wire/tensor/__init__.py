"""A tensor in memory: element types, layouts, live memory borrowed and lent. No protobuf and no I/O."""
