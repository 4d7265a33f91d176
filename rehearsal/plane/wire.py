"""Requests and answers on the wire, read and written from botocore's own service models."""

from __future__ import annotations

import io
import json
import re
from typing import Any

from botocore.model import OperationNotFoundError
from moto.core.exceptions import ServiceException
from moto.core.parse import PROTOCOL_PARSERS, RequestParserError
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import get_service_router
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model
from werkzeug.exceptions import NotFound

from rehearsal.plane.calls import Call
from rehearsal.plane.failures import AwsFailure

CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d{8}/([^/]+)/([^/]+)/aws4_request")
# The name in a signature's scope, where it is not botocore's name of the service.
SIGNED_AS = {"monitoring": "cloudwatch", "tagging": "resourcegroupstaggingapi", "servicequotas": "service-quotas"}
# Bodies that may be large or binary: the record keeps their address, not their content.
BODILESS = {"s3"}

Environ = dict[str, Any]
WireAnswer = tuple[int, dict[str, str], bytes]


def read_body(environ: Environ) -> bytes:
    """The request's body, which stays readable for whoever gets `environ` next.

    Raises ConnectionAbortedError when the client was killed before it had sent everything.
    """
    length = environ.get("CONTENT_LENGTH") or ""
    stream = environ["wsgi.input"]
    body: bytes = stream.read(int(length)) if length else (stream.read() if _is_chunked(environ) else b"")
    if len(body) < int(length or 0):
        raise ConnectionAbortedError("the client ended in the middle of its request")
    replace_body(environ, body)
    return body


def replace_body(environ: Environ, body: bytes) -> None:
    environ["wsgi.input"] = io.BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))
    environ["wsgi.input_terminated"] = True


def _is_chunked(environ: Environ) -> bool:
    return bool(environ.get("wsgi.input_terminated"))


def read_call(environ: Environ, body: bytes) -> Call:
    """Which operation of which service this is, with its parameters as botocore names them."""
    match = CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    access_key, signed = (match.group(1), match.group(3)) if match else ("", "")
    service = SIGNED_AS.get(signed, signed)
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        params = json.loads(body) if body else {}
        return Call(service=service, operation=target.rsplit(".", 1)[-1], params=params, access_key=access_key)
    if not service:
        return Call(service="", operation=f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", params={})
    operation, params = _modelled(service, environ)
    return Call(service=service, operation=operation, params=params, access_key=access_key)


def _modelled(service: str, environ: Environ) -> tuple[str, dict[str, Any]]:
    """Operation and parameters of query, EC2 and REST protocols. What cannot be parsed is still named."""
    request = Request(dict(environ))
    path = {"": environ["PATH_INFO"]}
    try:
        if "x-www-form-urlencoded" in environ.get("CONTENT_TYPE", ""):
            operation = str(request.form.get("Action", ""))
            uri: dict[str, Any] = {}
        else:
            matched, uri = get_service_router(service).match(request)
            operation = str(matched.name)
        if service in BODILESS:
            return operation, dict(uri)
        return operation, _parse(service, operation, request, uri)
    except (NotFound, OperationNotFoundError, RequestParserError, NotImplementedError):
        return f"{environ['REQUEST_METHOD']} {path['']}", {}
    finally:
        environ["wsgi.input"].seek(0)


def _parse(service: str, operation: str, request: Request, uri: dict[str, Any]) -> dict[str, Any]:
    model = get_service_model(service)
    protocol = determine_request_protocol(model, request.content_type)
    if protocol not in PROTOCOL_PARSERS:
        return {}
    parser = PROTOCOL_PARSERS[protocol](model.operation_model(operation), map_type=dict)
    request_dict: Any = {
        "method": request.method,
        "values": request.values,
        "headers": request.headers,
        "body": request.get_data(),
        "url_path": request.path,
        "url_params": uri,
    }
    return dict(parser.parse(request_dict))


def write_answer(call: Call, result: dict[str, Any], content_type: str) -> WireAnswer:
    """`result`, shaped as botocore's output of the operation, in the protocol that the client spoke."""
    return _serialize(call, result, content_type)


def write_failure(call: Call, failure: AwsFailure, content_type: str) -> WireAnswer:
    """The error as the service would send it; clients see its code and message."""
    error = type("WireError", (ServiceException,), {"code": failure.code})(failure.message)
    status, headers, body = _serialize(call, error, content_type)
    return failure.status if status < 500 else status, headers, body


def _serialize(call: Call, result: object, content_type: str) -> WireAnswer:
    model = get_service_model(call.service)
    protocol = determine_request_protocol(model, content_type)
    operation = model.operation_model(call.operation)
    serializer = get_serializer_class(model.service_name, protocol)(operation_model=operation, pretty_print=False)
    written = serializer.serialize(result)
    body = written["body"]
    headers = {str(name): str(value) for name, value in written["headers"].items()}
    return int(written["status_code"]), headers, body if isinstance(body, bytes) else str(body).encode()
