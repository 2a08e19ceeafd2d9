/* A plugin of mosquitto that is called for every message and does nothing: see benchmarks/peers.py. */
#include <stdint.h>
#include <stdio.h>

#include <mosquitto.h>
#include <mosquitto_broker.h>
#include <mosquitto_plugin.h>

static mosquitto_plugin_id_t *id;

static int message(int event, void *data, void *user)
{
	(void)event; (void)data; (void)user;
	return MOSQ_ERR_SUCCESS;
}

int mosquitto_plugin_version(int count, const int *versions)
{
	for (int i = 0; i < count; i++)
		if (versions[i] == 5) return 5;
	return -1;
}

int mosquitto_plugin_init(mosquitto_plugin_id_t *given, void **user, struct mosquitto_opt *options, int count)
{
	(void)user; (void)options; (void)count;
	id = given;
	return mosquitto_callback_register(id, MOSQ_EVT_MESSAGE, message, NULL, NULL);
}

int mosquitto_plugin_cleanup(void *user, struct mosquitto_opt *options, int count)
{
	(void)user; (void)options; (void)count;
	return mosquitto_callback_unregister(id, MOSQ_EVT_MESSAGE, message, NULL);
}
