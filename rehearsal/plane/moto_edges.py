"""Every private part of moto that the plane relies on, in one list, so that a test can tell when moto changed."""

from __future__ import annotations

import importlib
from importlib.metadata import version

PINNED = "5.2.5"
# (module, dotted attribute) that must exist for the plane to work.
SYMBOLS: tuple[tuple[str, str], ...] = (
    ("moto.cloudformation.parsing", "resource_class_from_type"),
    ("moto.cloudformation.parsing", "parse_and_create_resource"),
    ("moto.cloudformation.parsing", "parse_and_update_resource"),
    ("moto.cloudformation.parsing", "clean_json"),
    ("moto.cloudformation.parsing", "get_model_map"),
    ("moto.cloudformation.models", "Event"),
    ("moto.cloudformation.models", "Stack._add_stack_event"),
    ("moto.cloudformation.models", "Stack.delete"),
    ("moto.core.base_backend", "BackendDict._instances"),
    ("moto.core.responses", "BaseResponse.get_current_account"),
    ("moto.core.common_models", "CloudFormationModel.create_from_cloudformation_json"),
    ("moto.core.parse", "PROTOCOL_PARSERS"),
    ("moto.core.routing", "get_service_router"),
    ("moto.core.serialize", "get_serializer_class"),
    ("moto.core.types", "Base64EncodedString"),
    ("moto.dynamodb.models", "DynamoDBBackend.update_time_to_live"),
    ("moto.dynamodb.models", "DynamoDBBackend.update_continuous_backups"),
    ("moto.ec2.models.instance_types", "INSTANCE_TYPES"),
    ("moto.ec2.models.instances", "InstanceBackend.run_instances"),
    ("moto.ec2.models.instances", "InstanceBackend.get_instance_by_id"),
    ("moto.ec2.models.route_tables", "RouteBackend.delete_route_table"),
    ("moto.ec2.utils", "filter_dict_attribute_mapping"),
    ("moto.events.models", "EventPattern.matches_event"),
    ("moto.events.models", "EventPattern.get_pattern"),
    ("moto.events.utils", "EventTemplateParser.parse"),
    ("moto.awslambda.models", "LambdaBackend.list_event_source_mappings"),
    ("moto.awslambda.models", "LambdaBackend.put_function_event_invoke_config"),
    ("moto.moto_server.werkzeug_app", "DomainDispatcherApplication"),
    ("moto.moto_server.werkzeug_app", "MotoRequestHandler"),
    ("moto.scheduler.models", "EventBridgeSchedulerBackend.create_schedule"),
    ("moto.sqs.models", "SQSBackend.receive_message"),
    ("moto.sqs.models", "Message.mark_received"),
    ("moto.ssm.models", "Documents.get_default_version"),
    ("moto.sts.models", "STSBackend.get_assumed_role_from_access_key"),
)


def missing() -> list[str]:
    """What of moto is not as the plane needs it; empty when all is well."""
    found = [] if version("moto") == PINNED else [f"moto is {version('moto')}, the plane was built on {PINNED}"]
    for module, path in SYMBOLS:
        owner: object = importlib.import_module(module)
        for name in path.split("."):
            owner = getattr(owner, name, None)
        if owner is None:
            found.append(f"{module}.{path} is gone")
    return found


def require() -> None:
    """Refuses a moto that lacks a part that the plane needs."""
    absent = missing()
    if absent:
        raise RuntimeError("; ".join(absent) + ": adapt rehearsal/plane before you go on")
