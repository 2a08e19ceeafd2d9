"""The resources of the HTTP interface; each declares its routes (`mqttd.admin.http.route`)."""
