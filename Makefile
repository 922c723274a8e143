# pg_mop: `make demo` for a first look, `make test`, `make install`. README.md says more.

EXTENSION = pg_mop
MOP_VERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" pg_mop.control)
SQL       = $(wildcard sql/*.sql sql/*/*.sql)
MIGRATIONS = $(wildcard migrations/*.sql)
DATA_built = build/$(EXTENSION)--$(MOP_VERSION).sql $(if $(GREENPLUM),,$(MIGRATIONS:migrations/%=build/%))
BUILD_SQL = $(SYSTEM_PYTHON) -B tools/build_sql.py
# set where PG_CONFIG is Greenplum's
GREENPLUM = $(wildcard $(shell $(PG_CONFIG) --includedir-server 2>/dev/null)/cdb)

# `make install` puts the packages with their dependencies into one directory per version. WITH=search adds Optuna,
# WITH=jax JAX, WITH=torch PyTorch. FRAMEWORK=cuda installs TensorFlow for NVIDIA's GPUs instead of the build for processors,
# FRAMEWORK=jax or torch that framework alone, without TensorFlow.
ifeq ($(origin PG_CONFIG),undefined)
PG_CONFIG := $(shell tools/postgres.sh pg_config)
endif
HOME_DIR  ?= $(shell $(PG_CONFIG) --pkglibdir)/pg_mop-$(MOP_VERSION)
SYSTEM_PYTHON ?= /usr/bin/python3
FRAMEWORK ?= tensorflow

# the packages' directory in a virtual environment, for the version of SYSTEM_PYTHON
LIB_PYTHON = $(shell $(SYSTEM_PYTHON) -c 'import sys; print("lib/python%d.%d/site-packages" % sys.version_info[:2])')

LOCAL  = $(CURDIR)/.local
VENV   = $(LOCAL)/venv
SERVER = tools/server.sh

.PHONY: debian docs help demo demo-table demo-space check test test-all test-third freeze-test test-ray test-torch test-systems \
  soak lint start stop psql dsn clean packages bench bench-peers screenshots image image-test

help:
	@echo 'make demo      install missing packages, start an embedded PostgreSQL, run the demo'
	@echo 'make demo-table the same with a table of columns of all kinds: train, predict, measure'
	@echo 'make demo-space the same with a space of models: an evolution that inherits weights, and its family tree'
	@echo 'make psql      psql on the embedded server, which has the extension;  make -s dsn  its URI;  make start, make stop'
	@echo 'make check     the tests without a server: under two minutes'
	@echo 'make test      the tests of all that a change may break: about half an hour;  make test TESTS=tests/sql  one part of them'
	@echo 'make test-all  these, and the thorough ones: before an issue is called resolved'
	@echo 'make test-ray  the tests of trainers on Ray, which it installs into .local/venv'
	@echo 'make test-torch  the tests of Keras on PyTorch, likewise'
	@echo 'make test-systems  on another Debian, which it makes in /srv/systems (as root);  SYSTEM=trixie, its name'
	@echo 'make soak      small runs under random faults;  make soak SECONDS=300 SEED=7'
	@echo 'make docs      the documents as a site, in build/site'
	@echo 'make lint      ruff, its formatter, and mypy; oxlint and oxfmt for JavaScript'
	@echo 'make bench     pg_mop against other ways of model selection;  make bench WORKLOAD=search RUNS=1'
	@echo 'make papers    the experiments of the papers in the simulator, into docs/papers.md'
	@echo 'make screenshots  of the live page, into docs/pictures'
	@echo 'make image     a container image, by docker, podman or buildah;  make image-test  the demo in it'
	@echo 'make install   the extension for the PostgreSQL of PG_CONFIG (as root);  make install FRAMEWORK=cuda  with GPUs'
	@echo 'make clean     stop the embedded server and remove .local'

# --- the checkout's own server: PG=16, of that major version of PostgreSQL (tools/postgres.sh) ----------------
# the versions of PostgreSQL and Python: a change rebuilds everything that depends on them
$(LOCAL)/systems: FORCE
	@mkdir -p $(LOCAL); now="$$(tools/postgres.sh version 2> /dev/null) $$($(SYSTEM_PYTHON) -V 2> /dev/null)"; \
	  [ "$$now" = "$$(cat $@ 2> /dev/null)" ] || echo "$$now" > $@

$(LOCAL)/debian: tools/debian.sh tools/postgres.sh $(LOCAL)/systems
	@tools/debian.sh && touch $@

# more packages for the tests: libfaketime for clocks that step back, a browser and its driver
$(LOCAL)/debian-tests: $(LOCAL)/debian
	@tools/debian.sh libfaketime chromium chromium-driver && touch $@

$(LOCAL)/packages: pyproject.toml client/pyproject.toml tools/packages.sh $(LOCAL)/debian
	@test -d $(VENV)/$(LIB_PYTHON) || { rm -rf $(VENV); $(SYSTEM_PYTHON) -m venv $(VENV); }
	@echo 'installing the Python packages into .local/venv (about a minute)'
	@tools/packages.sh $(VENV)/bin/python --editable '.[tensorflow,demo,test,search,boosting]' \
	  --editable './client[images,parquet,tensorboard,dashboard]'
	@tools/packages.sh $(VENV)/bin/python --editable '.[jax]' || \
	  echo 'JAX cannot be installed here: the tests of Keras on JAX will be skipped, by name'
	@touch $@

debian: $(LOCAL)/debian
packages: $(LOCAL)/packages

# a private copy of the server's programs, so that the extension of this checkout is installed for it alone
OLDER = $(wildcard tests/upgrade/versions/*.sql)
$(LOCAL)/extension: $(SQL) pg_mop.control $(MIGRATIONS) $(OLDER) $(LOCAL)/debian tools/private_root.sh tools/build_sql.py
	@tools/private_root.sh $(LOCAL)/pgroot > $(LOCAL)/bindir
	@ext=$$($$(cat $(LOCAL)/bindir)/pg_config --sharedir)/extension; \
	  cp pg_mop.control $$ext/ && $(BUILD_SQL) $(VENV) $$ext $(OLDER)
	@touch $@

# (sessions cannot write bytecode into this directory, and would compile all their imports at every start)
SOURCES = plpy_modules mop_udf
$(LOCAL)/bytecode: $(LOCAL)/packages $(shell find $(SOURCES) -name '*.py')
	@$(VENV)/bin/python -m compileall -q $(SOURCES) && touch $@

TESTING = check test test-all test-third
start $(TESTING) test-ray test-torch soak: $(LOCAL)/bytecode
$(TESTING) test-ray test-torch soak: $(LOCAL)/packages $(LOCAL)/extension
test test-all test-third: $(LOCAL)/debian-tests

start: $(LOCAL)/packages $(LOCAL)/extension
	@$(SERVER) start

stop:
	@$(SERVER) stop

psql: start
	@$(SERVER) psql

dsn:
	@$(SERVER) dsn

demo:
	@demo/run.sh

demo-table:
	@demo/run.sh table

demo-space:
	@demo/run.sh space

SUITE = tools/as_server_user.sh $(VENV)/bin/python -B tools/suite.py

check:
	@$(SUITE) check $(PYTEST_ARGS)

test:
	@$(SUITE) $(or $(TESTS),test) $(PYTEST_ARGS)

test-all:
	@$(SUITE) all $(PYTEST_ARGS)

# one of three parts of the tests that are in `make test-all` alone, another one after each commit; THIRD=0, 1 or 2
THIRD ?= $(shell git rev-list --count HEAD 2> /dev/null || echo 0)
test-third:
	@$(SUITE) third:$(THIRD) $(PYTEST_ARGS)

# `make test` on a machine that stands still for 3 to 8 seconds every 15 to 35 seconds (as root)
freeze-test:
	@tools/freeze.py $(MAKE) test

# installed on request, because Ray is large
test-ray:
	@tools/packages.sh $(VENV)/bin/python --editable '.[ray]'
	@$(SUITE) tests/thorough/engines/test_ray.py $(PYTEST_ARGS)

test-torch:
	@tools/packages.sh $(VENV)/bin/python --editable '.[torch]'
	@$(SUITE) all -k torch $(PYTEST_ARGS)

SYSTEM ?= trixie
# in another Debian system: the demo, `make check`, and the suites that depend most on the server
test-systems:
	@tools/systems.sh $(SYSTEM)

SECONDS ?= 1800
soak:
	@tools/as_server_user.sh $(VENV)/bin/python -B tests/soak/soak.py --seconds $(SECONDS) \
	  $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults '$(FAULTS)')

docs: $(LOCAL)/packages
	@tools/packages.sh $(VENV)/bin/python --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet && echo build/site/index.html

.PHONY: reference
reference:
	@$(SYSTEM_PYTHON) -B tools/reference.py

JAVASCRIPT = plpy_modules/pg_mop/report client/pg_mop_client/page
lint: $(LOCAL)/packages
	@$(VENV)/bin/python -m ruff check . && $(VENV)/bin/python -m ruff format --check --quiet . && $(VENV)/bin/python -m mypy
	@$(VENV)/bin/oxlint --deny-warnings $(JAVASCRIPT) && $(VENV)/bin/oxfmt --check $(JAVASCRIPT)

# the peers use the packages of .local/venv, so that all contenders run the same Keras
$(LOCAL)/peers/installed: benchmarks/requirements.txt $(LOCAL)/packages
	@rm -rf $(LOCAL)/peers && $(SYSTEM_PYTHON) -m venv $(LOCAL)/peers
	@echo "import site; site.addsitedir('$(VENV)/$(LIB_PYTHON)')" > $(LOCAL)/peers/$(LIB_PYTHON)/pg_mop.pth
	@$(LOCAL)/peers/bin/pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@touch $@

bench-peers: $(LOCAL)/peers/installed

bench: start $(if $(filter explain,$(WORKLOAD)),,bench-peers)
	@benchmarks/run.sh $(WORKLOAD)

screenshots: start $(LOCAL)/debian-tests
	@$(VENV)/bin/python -B tools/screenshots.py "$$($(SERVER) dsn)"

# --- the image: IMAGE, its name; BASE, its base image; IMAGE_OPTIONS, the builder's own options ---------
export IMAGE BASE
image:
	@docker/build.sh $(IMAGE_OPTIONS)

image-test:
	@docker/test.sh

# --- the system's PostgreSQL (PGXS) -------------------------------------------------------------
.PHONY: FORCE
# (made each time, because the files contain the path of PG_CONFIG's directory)
$(DATA_built) &: FORCE
	@mkdir -p build && $(BUILD_SQL) $(if $(GREENPLUM),--greenplum) $(HOME_DIR) build

ifneq (,$(filter install uninstall installdirs,$(MAKECMDGOALS)))
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

install: install-packages
.PHONY: install-packages
install-packages:
	$(if $(filter tensorflow cuda jax torch,$(FRAMEWORK)),,\
	  $(error FRAMEWORK must be tensorflow, cuda, jax or torch, not $(FRAMEWORK)))
	@rm -rf build/lib build/bdist.*  # modules of an earlier build would be installed with those of today
	$(SYSTEM_PYTHON) -m venv $(DESTDIR)$(HOME_DIR)
	@# two packages with the same modules: one installed over the other leaves neither complete
	@cd / && packages=$(DESTDIR)$(HOME_DIR)/$(LIB_PYTHON); \
	  if [ -n "$(filter tensorflow cuda,$(FRAMEWORK))" ] \
	    && ls -d $$packages/tensorflow$(if $(filter cuda,$(FRAMEWORK)),_cpu)-[0-9]*.dist-info > /dev/null 2>&1; then \
	    $(DESTDIR)$(HOME_DIR)/bin/python -m pip uninstall --quiet --yes tensorflow tensorflow-cpu; fi
	tools/packages.sh $(DESTDIR)$(HOME_DIR)/bin/python '.[$(FRAMEWORK),boosting$(WITH:%=,%)]'
	@# the scripts will run from their final directory
	@$(if $(DESTDIR),grep -rlI '$(DESTDIR)' $(DESTDIR)$(HOME_DIR)/bin | xargs -r sed -i 's|$(DESTDIR)||g')

uninstall: uninstall-packages
.PHONY: uninstall-packages
uninstall-packages:
	rm -rf $(DESTDIR)$(HOME_DIR)
else
clean:
	@-test -d $(LOCAL) && $(SERVER) stop
	rm -rf $(LOCAL) build
endif

.PHONY: papers
# the papers' experiments in the simulator: docs/papers.md (some minutes)
papers: $(LOCAL)/packages
	@mkdir -p build && PYTHONPATH=plpy_modules:.:benchmarks $(VENV)/bin/python -B benchmarks/papers/run.py > build/papers.md.new \
	  && mv build/papers.md.new docs/papers.md
