"""The tensor service: an asyncio gRPC server."""
