"""The stack's template as written, and as SAM makes it for CloudFormation."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path
from typing import Any

import boto3
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "infra" / "template.yaml"

SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:super-1/{}-AbCdEf"
PARAMETERS = {
    "Bucket": "images",
    "Prefix": "train/",
    "CoordinatorSecretArn": SECRET.format("coordinator"),
    "TokenSecretArn": SECRET.format("token"),
    "CaSecretArn": SECRET.format("ca"),
    "CoordinatorImage": "registry.example/super-coordinator:0.1.0",
}


def written() -> dict[str, Any]:
    return yaml_parse(FILE.read_text(encoding="utf-8"))


def transformed(parameters: dict[str, str], bucket: str = "artifacts", key: str = "function.zip") -> Any:
    """What SAM hands to CloudFormation once the function's zip lies in a bucket."""
    template = written()
    template["Resources"]["Prefetch"]["Properties"]["CodeUri"] = {"Bucket": bucket, "Key": key}
    session = boto3.session.Session(region_name="us-east-1")
    template = Translator({}, Parser(), boto_session=session).translate(template, dict(parameters))
    cidr = parameters.get("VpcCidr", template["Parameters"]["VpcCidr"]["Default"])
    for parameter in template["Parameters"].values():
        if parameter["Type"] == "Number":  # to CloudFormation all values are texts, to moto numbers are not
            parameter["Type"] = "String"
            if "Default" in parameter:
                parameter["Default"] = str(parameter["Default"])
    return _with_cidrs(template, cidr)


def _with_cidrs(value: Any, vpc: str) -> Any:
    """Fn::Cidr worked out, which moto does not know."""
    if isinstance(value, dict):
        if "Fn::Cidr" in value:
            block, count, bits = value["Fn::Cidr"]
            assert block == {"Ref": "VpcCidr"}
            subnets = IPv4Network(vpc).subnets(new_prefix=32 - bits)
            return [str(subnet) for subnet in islice(subnets, count)]
        return {name: _with_cidrs(item, vpc) for name, item in value.items()}
    return [_with_cidrs(item, vpc) for item in value] if isinstance(value, list) else value
