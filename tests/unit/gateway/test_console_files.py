"""The files of the console: their folder is named by all of their bytes, so that a page never mixes two versions."""

from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.http.native.console.files import INDEX, served_files

NAMES = st.sampled_from(["a.js", "b.js", "c.css", "d.svg"])
CONSOLES = st.dictionaries(NAMES, st.binary(max_size=20), min_size=1).map(
    lambda files: {**files, INDEX: b'<script src="FOLDER/a.js">'}
)


def folder_of(served):
    return {path.rpartition("/")[0] for path in served if path != "/"}


@given(CONSOLES)
def test_the_page_names_the_folder_in_which_the_other_files_are(files):
    served = served_files(files)
    [folder] = folder_of(served)
    assert served["/"].body == f'<script src="{folder}/a.js">'.encode()
    assert {path.rpartition("/")[2]: one.body for path, one in served.items() if path != "/"} == {
        name: body for name, body in files.items() if name != INDEX
    }


@given(CONSOLES, CONSOLES)
def test_other_files_are_in_another_folder(some, others):
    assume(some != others)
    assert folder_of(served_files(some)) != folder_of(served_files(others))


@given(CONSOLES, st.text(alphabet='"W/abc, *', max_size=20))
def test_a_file_is_known_by_its_tag_alone(files, tags):
    one = served_files(files)["/"]
    tag = one.headers["etag"]
    assert not one.is_known(tags)
    assert one.is_known(f'"x",  W/{tag}, {tags}')
