"""Parameters that do not fit together are refused by the template's rules, before anything is made.

moto knows no rules, so they are worked out here; with the few functions that CloudFormation allows in them.
"""

from __future__ import annotations

import re

import pytest

from tests.infra.stack_template import PARAMETERS, written

TEMPLATE = written()
VPC, SUBNET = "vpc-0123456789abcdef0", "subnet-0123456789abcdef0"


def true(condition, values):
    """A rule's condition; a KeyError for a function that rules may not have."""
    ((function, operand),) = condition.items()
    return {
        "Fn::Equals": lambda: value(operand[0], values) == value(operand[1], values),
        "Fn::Not": lambda: not true(operand[0], values),
        "Fn::And": lambda: all(true(item, values) for item in operand),
        "Fn::Or": lambda: any(true(item, values) for item in operand),
    }[function]()


def value(operand, values):
    if isinstance(operand, dict):
        assert operand.keys() == {"Ref"}
        return str(values[operand["Ref"]])
    return str(operand)


def refusals(**given):
    """What the rules say against these parameters, and which patterns they do not fit."""
    values = {name: entry.get("Default", "") for name, entry in TEMPLATE["Parameters"].items()}
    values |= PARAMETERS | given
    found = [
        assertion["AssertDescription"]
        for rule in TEMPLATE["Rules"].values()
        if true(rule["RuleCondition"], values)
        for assertion in rule["Assertions"]
        if not true(assertion["Assert"], values)
    ]
    for name, entry in TEMPLATE["Parameters"].items():
        if "AllowedPattern" in entry and not re.fullmatch(entry["AllowedPattern"], str(values[name])):
            found.append(name)
        if "AllowedValues" in entry and values[name] not in entry["AllowedValues"]:
            found.append(name)
    return found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Egress": "public-ip"},
        {"VpcId": VPC, "PrivateSubnetIds": f"{SUBNET},{SUBNET}", "Egress": "existing"},
        {"VpcId": VPC, "PrivateSubnetIds": SUBNET, "RouteTableIds": "rtb-01234567"},
        {"MonthlyBudgetUsd": "10", "AlarmEmail": "ops@example.org"},
        {"Prefix": "imagenet/train/", "AvailabilityZone": "us-gov-west-1a", "StepModules": "a.b,c"},
    ],
)
def test_what_fits_together(given):
    assert refusals(**given) == []


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"VpcId": VPC}, "An existing VPC needs PrivateSubnetIds"),
        ({"VpcId": VPC, "PrivateSubnetIds": SUBNET, "Egress": "public-ip"}, "public-ip is for a new VPC"),
        ({"PrivateSubnetIds": SUBNET}, "name it in VpcId"),
        ({"Egress": "existing"}, "A new VPC has no way out"),
        ({"MonthlyBudgetUsd": "10"}, "needs AlarmEmail"),
        ({"Bucket": "s3://images"}, "Bucket"),
        ({"Prefix": "train/*"}, "Prefix"),
        ({"TokenSecretArn": "my-token"}, "TokenSecretArn"),
        ({"VpcCidr": "10.0.0.0/8"}, "VpcCidr"),
        ({"CoordinatorImage": "super-coordinator"}, "CoordinatorImage"),
        ({"PrivateSubnetIds": f"{SUBNET}, {SUBNET}"}, "PrivateSubnetIds"),
        ({"LogLevel": "ERROR"}, "LogLevel"),
    ],
)
def test_what_does_not(given, refusal):
    assert any(refusal in text for text in refusals(**given))
