"""S3 listings are parsed as by botocore, and invalid ones are refused."""

from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.handlers import decode_list_object_v2
from botocore.parsers import create_parser
from hypothesis import example, given
from hypothesis import strategies as st

from superdl.super_wire.objects import Fault, ObjectError, Page
from superdl.super_wire.objects.s3_responses import parse_page

XML_TEXT = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
ANY_TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
CHECKSUM, OWNER = "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm>", "<Owner><ID>me</ID></Owner>"
SHAPE = botocore.session.Session().get_service_model("s3").operation_model("ListObjectsV2").output_shape


def listing(objects, folders, token, encode, more=(CHECKSUM, OWNER)):
    contents = "".join(
        f"<Contents><Key>{escape(encode(key))}</Key><LastModified>2026-11-29T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size>{more[place % len(more)]}"
        f"<StorageClass>STANDARD</StorageClass></Contents>\n"
        for place, (key, etag, size) in enumerate(objects)
    )
    below = "".join(
        f"<CommonPrefixes><Prefix>{escape(encode(name))}</Prefix></CommonPrefixes>" for name in folders
    )
    url = "" if encode is str else "<EncodingType>url</EncodingType>"
    following = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>data</Name>'
        f"<Prefix></Prefix>{url}<IsTruncated>{'true' if token else 'false'}</IsTruncated>{following}"
        f"{contents}{below}</ListBucketResult>"
    ).encode()


def botocores(content, *, encoded):
    """Parse a listing with botocore into objects, folders and token."""
    parsed = create_parser("rest-xml").parse({"body": content, "headers": {}, "status_code": 200}, SHAPE)
    if encoded:
        decode_list_object_v2(parsed, {"encoding_type_auto_set": True})
    objects = [(item["Key"], item["ETag"].strip('"'), item["Size"]) for item in parsed.get("Contents", [])]
    folders = [item["Prefix"] for item in parsed.get("CommonPrefixes", [])]
    return objects, folders, parsed["NextContinuationToken"] if parsed["IsTruncated"] else ""


def keys_of(characters):
    return st.lists(
        st.tuples(st.text(characters, min_size=1, max_size=20), st.just("e"), st.integers(0, 2**50)),
        max_size=5,
    )


def is_parsed_as_by_botocore(objects, folders, token, encode):
    for more in ([""], ["", OWNER], [CHECKSUM]):
        content = listing(objects, folders, token, encode, more)
        page, following = parse_page(content)
        found = [(key, etag, size) for key, etag, size, _ in page.objects]
        assert (found, page.folders, following) == (objects, folders, token)
        assert botocores(content, encoded=encode is not str) == (objects, folders, token)


@pytest.mark.parametrize("encode", [quote, quote_plus])
@given(objects=keys_of(ANY_TEXT), folders=st.lists(st.text(ANY_TEXT, min_size=1)), token=st.text(XML_TEXT))
@example(objects=[("odd//b.jpg", "e", 1), ("/lead", "e", 0), ("\x01\x1f\r\n", "e", 2)], folders=[], token="t")
@example(objects=[("a+b c%20%", "e", 1), (" x ", "e", 0)], folders=["//", "+/"], token="a&b")
def test_encoded_keys_are_decoded(encode, objects, folders, token):
    is_parsed_as_by_botocore(objects, folders, token, encode)


@given(objects=keys_of(XML_TEXT), folders=st.lists(st.text(XML_TEXT, min_size=1)))
@example(objects=[("<&>'\"%41+", "e", 1), (" x ", "e", 0)], folders=["&amp;/"])
def test_keys_that_are_not_encoded_are_not_decoded(objects, folders):
    is_parsed_as_by_botocore(objects, folders, "", str)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"<html><p>It works!</p></html>",
        b"<Error><Code>InternalError</Code></Error>",
        b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a\x01</Key><Size>1</Size></Contents></ListBucketResult>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><ListBucketResult></ListBucketResult>',
    ],
)
def test_an_invalid_listing_is_refused(content):
    with pytest.raises(ObjectError, match="listing cannot be parsed") as caught:
        parse_page(content)
    assert caught.value.fault is Fault.FAILED


def test_an_empty_listing_has_no_objects():
    assert parse_page(listing([], [], "", quote)) == (Page([], []), "")


def test_a_truncated_listing_needs_a_token():
    with pytest.raises(ObjectError, match="without returning a continuation token") as caught:
        parse_page(b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")
    assert caught.value.fault is Fault.FAILED


@pytest.mark.parametrize("around", ["<!-- {} -->", "<Name><![CDATA[{}]]></Name>"])
def test_objects_in_comments_and_texts_are_ignored(around):
    content = listing([("a", "e", 1)], [], "", str, [""])
    whole = content.decode().partition("<Contents>")[2].partition("</Contents>")[0]
    hidden = around.format(f"<Contents>{whole.replace('>a<', '>b<')}</Contents>").encode()
    page, _ = parse_page(content.replace(b"</ListBucketResult>", hidden + b"</ListBucketResult>"))
    assert [item.key for item in page.objects] == ["a"]
