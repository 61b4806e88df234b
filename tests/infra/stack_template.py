"""The stack's template, as written and as SAM and CloudFormation resolve it for given parameters.

A reference to a resource that these parameters exclude fails, as in CloudFormation.
"""

import functools
import re
from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path

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
PSEUDO = {
    "AWS::StackName": "super-1",
    "AWS::Region": "us-east-1",
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackId": "arn:aws:cloudformation:us-east-1:123456789012:stack/super-1/1",
}
VERSION = "arn:aws:lambda:us-east-1:123456789012:function:super-1-prefetch:1"
_NOTHING = object()


def written():
    return yaml_parse(FILE.read_text(encoding="utf-8"))


@functools.cache
def worked_out(**parameters):
    """The stack with these parameters, beside those that have no default."""
    return WorkedOut(**parameters)


def statements_of(stack, role):
    """The statements of a role's one policy, by their id."""
    (policy,) = stack.resources[role]["Policies"]
    return {statement["Sid"]: statement for statement in policy["PolicyDocument"]["Statement"]}


class WorkedOut:
    """What CloudFormation makes of the template: ``resources`` and ``outputs``, of plain values.

    A resource that is referred to is ``<Name>``, its attributes are ``<Name.Attribute>``.
    """

    def __init__(self, **parameters):
        template = written()
        template["Resources"]["Prefetch"]["Properties"]["CodeUri"] = {"Bucket": "artifacts", "Key": "f.zip"}
        session = boto3.session.Session(region_name="us-east-1")
        own = PARAMETERS | parameters
        self._template = Translator({}, Parser(), boto_session=session).translate(template, dict(own))
        defaults = {name: entry.get("Default", "") for name, entry in template["Parameters"].items()}
        self._values = {**defaults, **own, **PSEUDO}
        self._here = {
            name
            for name, resource in self._template["Resources"].items()
            if self.holds(resource.get("Condition"))
        }
        self.resources = {
            name: self.plain(self._template["Resources"][name].get("Properties", {})) for name in self._here
        }
        self.outputs = {
            name: self.plain(output["Value"])
            for name, output in self._template["Outputs"].items()
            if self.holds(output.get("Condition"))
        }

    def of_type(self, kind):
        """The resources of a type, by their names."""
        return {
            name: properties
            for name, properties in self.resources.items()
            if self._template["Resources"][name]["Type"] == kind
        }

    def refusals(self, parameters):
        """The template's rules, and its parameters, that refuse these parameters."""
        kept, self._values = self._values, self._values | parameters
        found = [
            name
            for name, rule in written()["Rules"].items()
            if self.holds(rule["RuleCondition"])
            and not all(self.holds(assertion["Assert"]) for assertion in rule["Assertions"])
        ]
        for name, entry in self._template["Parameters"].items():
            fits = re.fullmatch(entry.get("AllowedPattern", "(?s).*"), str(self._values[name]))
            if not fits or self._values[name] not in entry.get("AllowedValues", [self._values[name]]):
                found.append(name)
        self._values = kept
        return found

    def holds(self, condition):
        """Whether a condition, by its name or as an expression, is true."""
        if condition is None or isinstance(condition, str):
            return condition is None or self.holds(self._template["Conditions"][condition])
        ((function, operand),) = condition.items()
        if function == "Condition":
            return self.holds(operand)
        if function == "Fn::Equals":
            return str(self.plain(operand[0])) == str(self.plain(operand[1]))
        values = [self.holds(item) for item in operand]
        return {
            "Fn::Not": lambda: not values[0],
            "Fn::And": lambda: all(values),
            "Fn::Or": lambda: any(values),
        }[function]()

    def plain(self, value):
        """A value without functions of CloudFormation's; what is AWS::NoValue is left out."""
        if isinstance(value, list):
            return [item for item in map(self.plain, value) if item is not _NOTHING]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((name, operand),) = value.items()
            if name == "Ref" or name.startswith("Fn::"):
                return self._function(name.removeprefix("Fn::"), operand)
        items = {name: self.plain(item) for name, item in value.items()}
        return {name: item for name, item in items.items() if item is not _NOTHING}

    def _function(self, name, operand):
        if name == "If":
            return self.plain(operand[1] if self.holds(operand[0]) else operand[2])
        if name == "Ref":
            return self._reference(operand)
        if name == "Sub":
            text, more = operand if isinstance(operand, list) else (operand, {})
            local = {key: str(self.plain(item)) for key, item in more.items()}
            return re.sub(
                r"\$\{([\w:.]+)\}", lambda found: local.get(found[1]) or str(self._reference(found[1])), text
            )
        operand = self.plain(operand)
        return {
            "GetAtt": lambda: self._reference(operand if isinstance(operand, str) else ".".join(operand)),
            "Join": lambda: operand[0].join(map(str, operand[1])),
            "Select": lambda: operand[1][int(operand[0])],
            "Split": lambda: operand[1].split(operand[0]),
            "GetAZs": lambda: ["us-east-1a", "us-east-1b"],
            "FindInMap": lambda: self._template["Mappings"][operand[0]][operand[1]][operand[2]],
            "Cidr": lambda: [
                str(net)
                for net in islice(
                    IPv4Network(operand[0]).subnets(new_prefix=32 - int(operand[2])), int(operand[1])
                )
            ],
        }[name]()

    def _reference(self, name):
        if name == "AWS::NoValue":
            return _NOTHING
        if name in self._values:
            value = self._values[name]
            kind = self._template["Parameters"].get(name, {}).get("Type", "")
            return value.split(",") if kind == "CommaDelimitedList" else value
        assert name.partition(".")[0] in self._here, f"{name} is not there with these parameters"
        if self._template["Resources"].get(name, {}).get("Type") == "AWS::Lambda::Version":
            return VERSION
        return f"<{name}>"
