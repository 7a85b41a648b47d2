"""A study whose workers are jobs of Slurm: run it where jobs can be submitted, and where it may
stay until the study ends.

python docs/guides/cluster/slurm.py
"""

from dask_jobqueue import SLURMCluster

import eigenlens as el


def main() -> None:
    cluster = SLURMCluster(
        cores=1,  # threads of a job's workers; torch gets as many as el.Dask says
        processes=1,  # workers in a job
        memory="4GB",
        walltime="01:00:00",
        # interface="ib0",  # the network that nodes and this machine share
        job_script_prologue=["export OMP_NUM_THREADS=1"],
        # hand results on before the time limit
        worker_extra_args=["--lifetime", "55m", "--lifetime-stagger", "4m"],
    )
    # not scale(): that does not replace a job that ended
    cluster.adapt(minimum_jobs=2, maximum_jobs=2)
    with cluster, el.Dask(scheduler=cluster.scheduler_address):
        el.study("minilm", "python-docs", "out", max_inputs=400, resume=True)


if __name__ == "__main__":
    main()
