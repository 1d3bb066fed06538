"""Files of the formats that are read, made small and exactly as wanted: good ones, and parts for broken ones."""

from __future__ import annotations

import io
import zipfile
import zlib

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
P = "http://schemas.openxmlformats.org/presentationml/2006/main"
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "application/vnd.openxmlformats-officedocument"
XML = '<?xml version="1.0" encoding="UTF-8"?>'


def archive(parts):
    """Return a ZIP archive of texts by their names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in parts.items():
            made.writestr(name, content)
    return file.getvalue()


def _types(**overrides):
    parts = "".join(
        f'<Override PartName="/{name}" ContentType="{OFFICE}.{kind}+xml"/>' for name, kind in overrides.items()
    )
    return (
        f'{XML}<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{parts}</Types>'
    )


def _relations(*targets):
    kinds = "".join(
        f'<Relationship Id="r{number}" Type="{R}/{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(targets)
    )
    return f'{XML}<Relationships xmlns="{PACKAGE}/relationships">{kinds}</Relationships>'


def docx(body, head="", **more):
    """Return a document of the XML of its body; `head` goes before its root."""
    return archive(
        {
            "[Content_Types].xml": _types(**{"word/document.xml": "wordprocessingml.document.main"}),
            "_rels/.rels": _relations(("officeDocument", "word/document.xml")),
            "word/document.xml": f'{XML}{head}<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>',
            **more,
        }
    )


def paragraph(text, style=""):
    """Return the XML of a paragraph of a document."""
    named = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{named}<w:r><w:t>{text}</w:t></w:r></w:p>"


def pptx(*slides, head=""):
    """Return slides, each of a title and a text; `head` goes before the root of each."""
    ids = "".join(f'<p:sldId id="{256 + n}" r:id="r{n}"/>' for n in range(len(slides)))
    parts = {
        "[Content_Types].xml": _types(),
        "ppt/presentation.xml": f'{XML}<p:presentation xmlns:p="{P}" xmlns:r="{R}">'
        f"<p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": _relations(*(("slide", f"slides/slide{n}.xml") for n in range(len(slides)))),
    }
    for number, (title, text) in enumerate(slides):
        shapes = _shape(title, '<p:nvPr><p:ph type="title"/></p:nvPr>') + _shape(text, "<p:nvPr/>")
        parts[f"ppt/slides/slide{number}.xml"] = (
            f'{XML}{head}<p:sld xmlns:p="{P}" xmlns:a="{A}"><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>'
        )
    return archive(parts)


def _shape(text, place):
    body = f"<p:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody>"
    return f"<p:sp><p:nvSpPr>{place}</p:nvSpPr>{body}</p:sp>"


def xlsx(rows_xml, sheet="Prices"):
    """Return a workbook of one sheet from the XML of its rows."""
    return archive(
        {
            "[Content_Types].xml": _types(
                **{"xl/workbook.xml": "spreadsheetml.sheet.main", "xl/worksheets/sheet1.xml": "spreadsheetml.worksheet"}
            ),
            "_rels/.rels": _relations(("officeDocument", "xl/workbook.xml")),
            "xl/workbook.xml": f'{XML}<workbook xmlns="{S}" xmlns:r="{R}">'
            f'<sheets><sheet name="{sheet}" sheetId="1" r:id="r0"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": _relations(("worksheet", "worksheets/sheet1.xml")),
            "xl/worksheets/sheet1.xml": f'{XML}<worksheet xmlns="{S}"><sheetData>{rows_xml}</sheetData></worksheet>',
        }
    )


def row(number, *cells):
    """Return the XML of a row of texts."""
    made = "".join(
        f'<c r="{chr(65 + n)}{number}" t="inlineStr"><is><t>{cell}</t></is></c>' for n, cell in enumerate(cells)
    )
    return f'<row r="{number}">{made}</row>'


def pdf(*pages, title="", bookmarks=()):
    """Return a PDF with a line of text on each page; a bookmark is a title and the number of its page from 0."""
    first = 4  # after the catalogue, the pages and the font
    objects = ["", "", "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        place = first + 2 * number
        objects.append(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
            f"/Contents {place + 1} 0 R>>"
        )
        objects.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(pages)))
    objects[1] = f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>"
    outlines = ""
    if bookmarks:
        root = len(objects) + 1
        last = root + len(bookmarks)
        objects.append(f"<</Type/Outlines/First {root + 1} 0 R/Last {last} 0 R/Count {len(bookmarks)}>>")
        for number, (name, page) in enumerate(bookmarks, root + 1):
            after = f"/Next {number + 1} 0 R" if number < last else ""
            objects.append(f"<</Title({name})/Parent {root} 0 R{after}/Dest[{first + 2 * page} 0 R/Fit]>>")
        outlines = f"/Outlines {root} 0 R"
    objects[0] = f"<</Type/Catalog/Pages 2 0 R{outlines}>>"
    objects.append(f"<</Title({title})>>")
    return pdf_of(objects, f"/Info {len(objects)} 0 R")


def pdf_of(objects, trailer=""):
    """Return a PDF of the texts or bytes of its objects, of which the first one is the catalogue."""
    file = bytearray(b"%PDF-1.7\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(file))
        file += f"{number} 0 obj\n".encode() + (body if isinstance(body, bytes) else body.encode()) + b"\nendobj\n"
    start = len(file)
    file += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    file += b"".join(f"{place:010d} 00000 n \n".encode() for place in places)
    return bytes(file + f"trailer<</Size {len(objects) + 1}/Root 1 0 R{trailer}>>\nstartxref\n{start}\n%%EOF".encode())


def flate(data):
    """Return a compressed stream object of a PDF."""
    packed = zlib.compress(data, 9)
    return b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(packed), packed)
