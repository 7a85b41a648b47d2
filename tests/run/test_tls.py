"""A cluster with certificates is joined by Dask's own settings, and not without them."""

import dask
import pytest
from distributed import Security

from eigenlens import EigenlensError
from eigenlens.run.cluster import Dask
from eigenlens.run.engine import Local
from run.jobs import Spelling, some_shards
from run.processes import Cluster


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A cluster that speaks TLS alone, and what a client must be told of it."""
    folder, made = tmp_path_factory.mktemp("tls"), Security.temporary()
    (folder / "ca.pem").write_text(made.tls_ca_file)
    (folder / "key.pem").write_text(made.tls_client_key)
    (folder / "cert.pem").write_text(made.tls_client_cert)
    parts = {"key": str(folder / "key.pem"), "cert": str(folder / "cert.pem")}
    tls = {
        f"{role}.{what}": path
        for role in ("client", "scheduler", "worker")
        for what, path in parts.items()
    }
    tls["ca-file"] = str(folder / "ca.pem")
    settings = {f"distributed.comm.tls.{name}": path for name, path in tls.items()}
    message = {
        name.upper().replace(".", "__").replace("-", "_"): path for name, path in settings.items()
    }
    with Cluster(folder / "cluster", **message, DISTRIBUTED__COMM__DEFAULT_SCHEME="tls") as cluster:
        yield cluster.address, settings


def test_by_dasks_own_settings_it_is_joined(certified):
    address, settings = certified
    assert address.startswith("tls://")
    engine = Dask(scheduler=address)
    with dask.config.set(settings), engine.running():
        found = [at.state for at in engine.fold(Spelling(), some_shards(9))]
    assert found == [at.state for at in Local().fold(Spelling(), some_shards(9)) if at.complete]


def test_without_them_one_sentence_says_which_are_missing(certified):
    with (
        pytest.raises(EigenlensError, match=r"could not be reached.*distributed\.comm\.tls"),
        Dask(scheduler=certified[0]),
    ):
        pass
