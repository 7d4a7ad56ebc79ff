"""Server reflection as tools use it: descriptors by the address of a server alone."""

import grpc
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

# The messages of both versions have equal fields.
VERSIONS = ("v1", "v1alpha")


class ReflectedFiles:
    """A descriptor database, for google.protobuf.descriptor_pool.DescriptorPool."""

    def __init__(self, channel, version):
        self._ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )

    def ask(self, **request):
        requests = iter([reflection_pb2.ServerReflectionRequest(**request)])
        (response,) = self._ask(requests, timeout=30)
        if response.HasField("error_response"):
            error = response.error_response
            assert error.error_code == grpc.StatusCode.NOT_FOUND.value[0], error
            raise KeyError(error.error_message)
        return response

    def services(self):
        return [s.name for s in self.ask(list_services="").list_services_response.service]

    def FindFileByName(self, name):  # noqa: N802 - the name that the pool calls
        return self._first_file(file_by_filename=name)

    def FindFileContainingSymbol(self, name):  # noqa: N802
        return self._first_file(file_containing_symbol=name)

    def extension_numbers(self, name):
        response = self.ask(all_extension_numbers_of_type=name)
        return list(response.all_extension_numbers_response.extension_number)

    def _first_file(self, **request):
        response = self.ask(**request).file_descriptor_response
        return descriptor_pb2.FileDescriptorProto.FromString(response.file_descriptor_proto[0])
