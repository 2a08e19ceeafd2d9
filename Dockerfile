# The broker in a container, as a user of its own:
#
#   docker build -t mqttd .
#   docker run -p 1883:1883 -v mqttd-data:/var/lib/mqttd -v mqttd-conf:/etc/mqttd mqttd
#   docker exec -it CONTAINER mqttd-ctl status
#
# Clients from outside the container need a user: docker exec -it CONTAINER mqttd-ctl users add ann
# The RUN lines are run by tests/packaging/test_container.py, in an empty directory.

FROM python:3.13 AS build
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/mqttd
RUN /opt/mqttd/bin/pip install --no-cache-dir --disable-pip-version-check /src

FROM python:3.13-slim
COPY --from=build /opt/mqttd /opt/mqttd
RUN useradd --system --home-dir /var/lib/mqttd --shell /usr/sbin/nologin mqttd
RUN /opt/mqttd/bin/mqttd-ctl init /etc/mqttd --data /var/lib/mqttd
RUN chown -R mqttd: /etc/mqttd /var/lib/mqttd
ENV PATH=/opt/mqttd/bin:$PATH MQTTD__LISTENER__TCP__DEFAULT__BIND=:1883
USER mqttd
WORKDIR /var/lib/mqttd
VOLUME ["/etc/mqttd", "/var/lib/mqttd"]
EXPOSE 1883
HEALTHCHECK --start-period=20s CMD ["mqttd-ctl", "--config", "/etc/mqttd/mqttd.conf", "status"]
CMD ["mqttd", "--config", "/etc/mqttd/mqttd.conf"]
